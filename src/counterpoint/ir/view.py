"""A snapshot of a graph that answers order and dependence questions at once: `GraphView.of(graph)`.

A node *depends* on another when it must run after it: because it uses its value, directly or through others, or
because the two touch something in conflict (`alias.Hazards`). Which collectives a node depends on is one Python
integer, bit k for the k-th start. Nodes with equal sets share the integer, so there are about as many integers as
collectives, not as nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from torch.fx import Graph, GraphModule, Node

from counterpoint.errors import GraphError, StaleViewError
from counterpoint.ir import ops
from counterpoint.ir.alias import Hazards, waits_of
from counterpoint.ir.collective import Collective, read_collective
from counterpoint.ir.merges import MergePlanner
from counterpoint.ir.reason import Refusal
from counterpoint.ir.revision import Snapshot


class GraphView:
    """Order, users, collectives and dependence of one state of a graph. Every question is refused once it is stale."""

    def __init__(self, graph: Graph, hazards: Hazards | None = None) -> None:
        self.graph = graph
        self.nodes: tuple[Node, ...] = tuple(graph.nodes)
        """All nodes in order."""
        self._index = {node: index for index, node in enumerate(self.nodes)}
        self._check_order()
        # Identity of the arguments shows later whether somebody has replaced them by hand.
        self._args = [node.args for node in self.nodes]
        self._kwargs = [node.kwargs for node in self.nodes]
        self._snapshot = Snapshot(graph)
        self.hazards = Hazards.of(graph) if hazards is None else hazards
        """Who touches which buffer."""
        self.starts: tuple[Node, ...] = tuple(node for node in self.nodes if ops.is_collective(node))
        """The nodes that start collectives, in order: the k-th is bit k of every set."""
        self._bit = {start: k for k, start in enumerate(self.starts)}

    @staticmethod
    def of(graph: Graph | GraphModule) -> GraphView:
        """A view of the graph as it is now."""
        return GraphView(graph.graph if isinstance(graph, GraphModule) else graph)

    # -- order and users ----------------------------------------------------------------------------------------------

    def index(self, node: Node) -> int:
        """The position of a node."""
        self._check(node)
        return self._index[node]

    def users(self, node: Node) -> tuple[Node, ...]:
        """The nodes that use the node's value, in graph order."""
        self._check(node)
        return tuple(sorted(node.users, key=self._index.__getitem__))

    def first_user(self, node: Node) -> Node | None:
        """The earliest node that uses the node's value."""
        self._check(node)
        return min(node.users, key=self._index.__getitem__, default=None)

    def between(self, first: Node, last: Node) -> tuple[Node, ...]:
        """The nodes that stand strictly between two others."""
        return self.nodes[self.index(first) + 1 : self.index(last)]

    def predecessors(self, node: Node) -> tuple[Node, ...]:
        """The nodes that must stand before the node and have nothing in between that says so: inputs and conflicts."""
        self._check(node)
        return (*node.all_input_nodes, *self._hazard_inputs.get(node, ()))

    def successors(self, node: Node) -> tuple[Node, ...]:
        """The nodes that must stand after the node: users and conflicts."""
        self._check(node)
        return (*node.users, *self._hazard_users.get(node, ()))

    def earliest(self, node: Node) -> Node | None:
        """The node right after which this one may stand at the earliest; None when nothing must come before it."""
        return max(self.predecessors(node), key=self._index.__getitem__, default=None)

    def latest(self, node: Node) -> Node:
        """The node right before which this one may stand at the latest."""
        return min(self.successors(node), key=self._index.__getitem__, default=self.nodes[-1])

    # -- dependence ---------------------------------------------------------------------------------------------------

    def depends(self, node: Node, on: Node) -> bool:
        """Whether `node` must run after `on`. At once where `on` starts a collective, else a search between the two."""
        self._check(node)
        self._check(on)
        first, last = self._index[on], self._index[node]
        if first >= last:
            return False
        bit = self._bit.get(on)
        if bit is not None:
            return bool(self._upto[last] >> bit & 1)
        return self._reaches(first, last)

    def independent(self, a: Node, b: Node) -> bool:
        """Whether the two nodes may run in any order, or at once: neither depends on the other."""
        return a is not b and not self.depends(a, b) and not self.depends(b, a)

    def collectives_before(self, node: Node) -> tuple[Node, ...]:
        """The starts that the node depends on, in order."""
        return tuple(self._starts_in(self.ancestor_bits(node)))

    def ancestor_bits(self, node: Node) -> int:
        """The starts that the node depends on, as bits in the order of `starts`."""
        self._check(node)
        bits = self._upto[self._index[node]]
        own = self._bit.get(node)
        return bits if own is None else bits & ~(1 << own)

    def descendants(self, node: Node) -> tuple[Node, ...]:
        """Every node that depends on the node, in order. Visits these and their edges."""
        seen = {node}
        frontier = [node]
        while frontier:
            for after in self.successors(frontier.pop()):
                if after not in seen:
                    seen.add(after)
                    frontier.append(after)
        return tuple(sorted(seen - {node}, key=self._index.__getitem__))

    # -- collectives --------------------------------------------------------------------------------------------------

    @cached_property
    def collectives(self) -> tuple[Collective | Refusal, ...]:
        """What `read_collective` says of each of `starts`."""
        self._check_snapshot()
        return tuple(read_collective(start) for start in self.starts)

    def collective(self, start: Node) -> Collective | Refusal:
        """What `read_collective` says of a start."""
        self._check(start)
        if start not in self._bit:
            return read_collective(start)
        return self.collectives[self._bit[start]]

    def merges(self) -> MergePlanner:
        """A planner for merging collectives, with nothing merged yet."""
        self._check_snapshot()
        return MergePlanner(self.starts, [self._merge_bits(start) for start in self.starts])

    # -- staleness ----------------------------------------------------------------------------------------------------

    def check_all(self) -> None:
        """Raise StaleViewError when anything in the graph has changed since; looks at every node.

        The other questions only look at the nodes they are asked about, and at whether nodes have been made or erased.
        """
        self._check_snapshot()
        for node, actual in zip(self.nodes, self.graph.nodes, strict=True):
            if node is not actual:
                raise _stale(actual)
            self._check(node)

    def _check_snapshot(self) -> None:
        if not self._snapshot.is_current():
            raise _stale(None)

    def _check(self, node: Node) -> None:
        if not self._snapshot.is_current():
            raise _stale(node)
        index = self._index.get(node)
        if index is None:
            raise GraphError("the node is not in the graph of this view", where=f"node {node.name}")
        if node.args is not self._args[index] or node.kwargs is not self._kwargs[index]:
            self._check_arguments(node, index)
        if index and node.prev is not self.nodes[index - 1]:
            raise _stale(node)

    def _check_arguments(self, node: Node, index: int) -> None:
        # An edit that was taken back leaves equal arguments in new containers. Their text is compared, because
        # comparing symbolic numbers would add guards.
        if repr((node.args, node.kwargs)) != repr((self._args[index], self._kwargs[index])):
            raise _stale(node)
        self._args[index], self._kwargs[index] = node.args, node.kwargs

    # -- building -----------------------------------------------------------------------------------------------------

    def _check_order(self) -> None:
        position = self._index
        for index, node in enumerate(self.nodes):
            for source in node.all_input_nodes:
                if position.get(source, index) >= index:
                    raise GraphError(
                        f"the node uses {source.name}, which comes later or is not in the graph",
                        where=f"node {node.name}",
                        next_step="repair the order before asking for a view",
                    )

    @cached_property
    def _hazard_inputs(self) -> dict[Node, tuple[Node, ...]]:
        return self.hazards.order_edges(self.nodes)

    @cached_property
    def _upto(self) -> list[int]:
        """For each node the starts up to it: those it depends on, and itself. Read when somebody asks for more than
        the order can tell."""
        upto: list[int] = []
        position, hazards, bits = self._index, self._hazard_inputs, self._bit
        for node in self.nodes:
            found = 0
            for source in (*node.all_input_nodes, *hazards.get(node, ())):
                found = _joined(found, upto[position[source]])
            own = bits.get(node)
            upto.append(found if own is None else found | 1 << own)
        return upto

    def _merge_bits(self, start: Node) -> int:
        """What a start waits for; for a fenced wait also what that waits for, since merging merges waits too."""
        found = self._upto[self._index[start]]
        for wait in waits_of(start):
            found = _joined(found, self._upto[self._index[wait]])
        return found ^ 1 << self._bit[start]

    @cached_property
    def _hazard_users(self) -> dict[Node, tuple[Node, ...]]:
        users: dict[Node, list[Node]] = {}
        for node, before in self._hazard_inputs.items():
            for other in before:
                users.setdefault(other, []).append(node)
        return {node: tuple(after) for node, after in users.items()}

    def _starts_in(self, bits: int) -> Iterator[Node]:
        while bits:
            low = bits & -bits
            yield self.starts[low.bit_length() - 1]
            bits ^= low

    def _reaches(self, first: int, last: int) -> bool:
        """Search backwards from `last`, never before `first`, and only where all of `first`'s collectives are known."""
        wanted = self._upto[first]
        seen = {last}
        frontier = [last]
        while frontier:
            node = self.nodes[frontier.pop()]
            for source in (*node.all_input_nodes, *self._hazard_inputs.get(node, ())):
                index = self._index[source]
                if index == first:
                    return True
                if index > first and index not in seen and not wanted & ~self._upto[index]:
                    seen.add(index)
                    frontier.append(index)
        return False


def _joined(a: int, b: int) -> int:
    """The union of two sets, as one of the two objects where it is equal to one: that is what keeps the view small."""
    if a is b or not b:
        return a
    if not a:
        return b
    union = a | b
    if union == a:
        return a
    return b if union == b else union


def _stale(node: Node | None) -> StaleViewError:
    return StaleViewError(
        "the graph has changed since this view was made",
        where=f"node {node.name}" if node is not None else None,
        next_step="make a new one: GraphView.of(graph)",
    )
