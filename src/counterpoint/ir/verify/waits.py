"""Every started collective is waited for once, and every wait waits for one.

A wait on an input of the graph is legal: the collective was started by whoever calls the graph. The other way round, a
graph that returns a result without waiting leaves that to its caller; this is accepted only where the reference did it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

from torch.fx import Graph, Node

from counterpoint.ir import effects, metadata, ops
from counterpoint.ir.effects import Effect
from counterpoint.ir.ops import Kind
from counterpoint.ir.storage import Storage
from counterpoint.ir.verify.finding import Finding, at

Pending = tuple[Node, int]
"""One tensor that a start gives back: the start and the number of the tensor."""


class Waits:
    """Which wait belongs to which tensor of which start; filled node by node, in graph order."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.pending: dict[Pending, None] = {}
        self.waits: dict[Pending, list[Node]] = {}
        self._landing: dict[Node, Pending] = {}
        """By class of memory, the last collective that writes its result there."""

    def start(self, node: Node) -> list[Pending]:
        """Note a start; what has to be waited for."""
        spec = ops.spec_of(node.target)
        if spec is None or not spec.waits:
            return []
        count = len(metadata.tensors_of(node)) if spec.coalesced else 1
        made = [(node, i) for i in range(count) if not _is_sent(node, i)]
        self.pending.update(dict.fromkeys(made))
        for target, one in zip(ops.tensors(node, spec.written), made, strict=False):
            self._landing[self.storage.find(target)] = one
        return made

    def wait(self, node: Node) -> Pending | Node:
        """What a wait waits for: a tensor of a start, or the node that is none."""
        found = self._trace(ops.argument(node, "tensor"))
        if isinstance(found, tuple):
            self.pending.pop(found, None)
            self.waits.setdefault(found, []).append(node)
        return found

    def _trace(self, node: Node) -> Pending | Node:
        index = 0
        while True:
            if ops.is_collective(node):
                return node, index
            if ops.is_wait(node):
                node, index = ops.argument(node, "tensor"), 0
                continue
            landed = self._landing.get(self.storage.find(node))
            shared = effects.aliased_nodes(node)
            if not shared or effects.effect_of(node) is Effect.BARRIER:
                return landed or node
            if node.target is operator.getitem and isinstance(node.args[1], int):
                index = node.args[1]
            node = shared[0]


def _is_sent(node: Node, index: int) -> bool:
    """Whether a tensor of a start is only sent: nobody needs to wait for it to use it."""
    spec = ops.spec_of(node.target)
    if spec is None or spec.kind is not Kind.P2P_BATCH:
        return spec is not None and spec.kind is Kind.SEND
    kinds = ops.argument(node, "op_list")
    return index < len(kinds) and kinds[index] == "isend"


def check_waits(graph: Graph) -> Iterator[Finding]:
    """One wait a tensor."""
    storage = Storage()
    waits = Waits(storage)
    for node in graph.nodes:
        storage.add(node)
        if ops.is_collective(node):
            waits.start(node)
        elif ops.is_wait(node):
            found = waits.wait(node)
            if isinstance(found, Node):
                yield from _stray(node, found)
            elif len(waits.waits[found]) > 1:
                yield at("waited-twice", node, f"{waits.waits[found][0].name} waits for {_name(found)} already")
    for one in waits.pending:
        yield at("never-waited", one[0], f"{_name(one)} ({one[0].target}) is never waited for")


def _stray(wait: Node, source: Node) -> Iterator[Finding]:
    if source.op == "call_function" and effects.effect_of(source) is not Effect.BARRIER:
        yield at("wait-on-nothing", wait, f"{source.name} ({source.target}) is not the result of a collective")


def _name(one: Pending) -> str:
    start, index = one
    listed = isinstance(start.meta.get("val"), (list, tuple))
    return f"tensor {index} of {start.name}" if listed else start.name
