"""Which nodes may share storage: a union-find over views, in-place results, list elements and waits.

Classes only grow: sharing is "may share", and forgetting a link would be the one unsafe mistake. A step can be taken
back while it is being tried, so that an edit that fails leaves no trace here either.

Two placeholders are taken for different buffers, as AOT autograd makes them; two reads of one attribute are the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from torch.fx import Node

from counterpoint.ir import effects, ops
from counterpoint.ir.effects import Effect

Undo = Callable[[], object]


class Storage:
    """Classes of nodes that may share storage; each is named by one of its nodes."""

    def __init__(self) -> None:
        # A node that is alone in its class stands in neither table: most are.
        self._parent: dict[Node, Node] = {}
        self._members: dict[Node, list[Node]] = {}
        # One node stands for each attribute, and for each element of a list of fresh tensors.
        self._firsts: dict[tuple[object, object], Node] = {}

    def find(self, node: Node) -> Node:
        """The node that names the class of `node`."""
        while (above := self._parent.get(node)) is not None:
            node = above
        return node

    def members(self, root: Node) -> list[Node]:
        """All nodes of the class that `root` names; to be read only."""
        return self._members.get(root) or [root]

    def add(self, node: Node, undo: list[Undo] | None = None) -> list[tuple[Node, Node]]:
        """Link the node to all that it may share storage with. Returns (kept, absorbed) names of the classes joined."""
        if effects.is_plain_call(node):
            return []
        others = self._shares_with(node, undo)
        if len(others) == 1 and others[0] is not node and node not in self._parent and node not in self._members:
            return self._attach(node, others[0], undo)
        joined = [self._union(node, other, undo) for other in others]
        return [pair for pair in joined if pair is not None]

    def _attach(self, node: Node, other: Node, undo: list[Undo] | None) -> list[tuple[Node, Node]]:
        """The same for a node that is alone, as most views are when they are read."""
        root = self.find(other)
        self._parent[node] = root
        kept = self._members.setdefault(root, [root])
        kept.append(node)
        if undo is not None:
            length = len(kept) - 1
            undo.append(lambda: self._part(node, kept, length))
        return [(root, node)]

    def _union(self, a: Node, b: Node, undo: list[Undo] | None) -> tuple[Node, Node] | None:
        keep, drop = self.find(a), self.find(b)
        if keep is drop:
            return None
        if len(self.members(keep)) < len(self.members(drop)):
            keep, drop = drop, keep
        # No path compression: union by size keeps paths logarithmic, and a union is one entry to take back.
        self._parent[drop] = keep
        kept = self._members.setdefault(keep, [keep])
        length = len(kept)
        kept.extend(self.members(drop))
        if undo is not None:
            undo.append(lambda: self._part(drop, kept, length))
        return keep, drop

    def _part(self, drop: Node, kept: list[Node], length: int) -> None:
        del self._parent[drop]
        del kept[length:]

    def _shares_with(self, node: Node, undo: list[Undo] | None) -> Sequence[Node]:
        if node.op == "get_attr":
            return (self._first(("attribute", node.target), node, undo),)
        if node.op == "call_function" and node.target is operator.getitem:
            return (self._element(node, undo),)
        if node.op == "placeholder" or node.op == "output":
            return ()
        return node.all_input_nodes if effects.effect_of(node) is Effect.BARRIER else effects.aliased_nodes(node)

    def _element(self, node: Node, undo: list[Undo] | None) -> Node:
        source, index = node.args
        if not isinstance(source, Node):
            return node
        spec = ops.spec_of(source.target)
        if spec is not None and spec.written:
            written = ops.tensors(source, spec.written)
            return written[index] if isinstance(index, int) and -len(written) <= index < len(written) else source
        if effects.effect_of(source) is Effect.BARRIER or effects.aliased_nodes(source) or source.op == "placeholder":
            return source
        return self._first((source, str(index)), node, undo)

    def _first(self, key: tuple[object, object], node: Node, undo: list[Undo] | None) -> Node:
        found = self._firsts.get(key)
        if found is None:
            self._firsts[key] = found = node
            if undo is not None:
                undo.append(lambda: self._firsts.pop(key))
        return found
