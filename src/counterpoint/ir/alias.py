"""Who touches which buffer, and therefore which nodes may not change places.

Everything that orders nodes beyond their data edges is told as reads and writes of *resources*:

- a class of nodes that may share storage (`storage.Storage`). A collective that is in flight holds its buffers until
  its wait, so the wait counts as a second access: it reads what was sent and writes what was received;
- `Ambient.GENERATOR`, written by every random draw, which keeps the draws in order;
- `Ambient.WIRE`, written by every point-to-point operation, whose order the peers count on;
- `Ambient.WORLD`, read by whatever communicates, writes or draws, and written by barriers.

Two nodes conflict when one writes what the other touches. Nothing else is needed: the view turns conflicts into edges,
the editor refuses moves that turn one around, the verifier looks for accesses between a start and its wait.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from enum import Enum
from typing import NamedTuple

import torch
from torch.fx import Graph, Node

from counterpoint._torch import OpOverload, once_an_operator
from counterpoint.ir import effects, ops
from counterpoint.ir.effects import Effect
from counterpoint.ir.ops import Kind
from counterpoint.ir.storage import Storage, Undo


class Ambient(Enum):
    """What nodes may touch beside buffers."""

    WORLD = "world"
    GENERATOR = "generator"
    WIRE = "wire"


Resource = Node | Ambient


class Accesses(NamedTuple):
    """The resources that a node touches, without repetition; what is both read and written counts as written."""

    reads: tuple[Resource, ...] = ()
    writes: tuple[Resource, ...] = ()


_NOTHING = Accesses()
_KEEP_ORDER = frozenset({Kind.SEND, Kind.RECV, Kind.P2P_BATCH, Kind.PEER_MEMORY})


class Hazards:
    """The accesses of a graph's nodes. `of` reads a graph once; the editor then keeps its own up to date."""

    def __init__(self) -> None:
        self.storage = Storage()
        # Only what is written by anyone can be a hazard: all questions about other resources end at this table.
        self._writers: dict[Resource, dict[Node, None]] = {}
        self._written_by: dict[Node, tuple[Resource, ...]] = {}
        self._undo: list[Undo] | None = None

    @staticmethod
    def of(graph: Graph) -> Hazards:
        """The hazards of all nodes of a graph."""
        hazards = Hazards()
        for node in graph.nodes:
            hazards.add(node)
        return hazards

    # -- asking -------------------------------------------------------------------------------------------------------

    def may_share(self, a: Node, b: Node) -> bool:
        """Whether the two results may lie in the same storage."""
        return self.storage.find(a) is self.storage.find(b)

    def is_written(self, resource: Resource) -> bool:
        """Whether any node writes the resource. `resource` may be any node of a class."""
        return bool(self._writers.get(self._name(resource)))

    def writers(self, resource: Resource) -> tuple[Node, ...]:
        """The nodes that write the resource, in the order in which they were found."""
        return tuple(self._writers.get(self._name(resource), ()))

    def written_by_others(self, nodes: Container[Node]) -> frozenset[Resource]:
        """What nodes other than these write."""
        written = (resources for node, resources in self._written_by.items() if node not in nodes)
        return frozenset(self._name(resource) for resources in written for resource in resources)

    def accesses(self, node: Node) -> Accesses:
        """What the node touches. Operators that only make a view touch nothing."""
        if effects.only_looks(node):
            return _NOTHING
        find = self.storage.find
        reads: dict[Resource, None] = dict.fromkeys([find(source) for source in node.all_input_nodes])
        if effects.is_plain_call(node):
            return Accesses(tuple(reads))
        effect = effects.effect_of(node)
        if effect is Effect.PURE:
            return Accesses(tuple(reads))
        writes = dict.fromkeys(self._name(resource) for resource in _writes(node))
        if effect is Effect.WAIT:
            start = started_by(node)
            reads |= dict.fromkeys(find(source) for source in (start.all_input_nodes if start else ()))
        if effect is not Effect.BARRIER:
            reads[Ambient.WORLD] = None
        return Accesses(tuple(r for r in reads if r not in writes), tuple(writes))

    def conflict(self, a: Node, b: Node) -> Resource | None:
        """A resource because of which the two nodes must not change places, or None when they may."""
        first, second = self.accesses(a), self.accesses(b)
        for resource in first.writes:
            if resource in second.writes or resource in second.reads:
                return resource
        return next((resource for resource in second.writes if resource in first.reads), None)

    def touching(self, resource: Resource) -> list[Node]:
        """Every node that touches the resource, in graph order. For a buffer this walks its users, not the graph."""
        resource = self._name(resource)
        if isinstance(resource, Node):
            return sorted(set(self._around(resource)))
        written = self.writers(resource)
        if resource is not Ambient.WORLD or not written:
            return sorted(written)
        return [node for node in written[0].graph.nodes if resource in _both(self.accesses(node))]

    def order_edges(self, nodes: Iterable[Node]) -> dict[Node, tuple[Node, ...]]:
        """For each node the earlier ones that must stay before it because of a conflict; direct inputs left out.

        Near linear: an access is tied to the last write before it, and a write to the reads since then.
        """
        last_write: dict[Resource, Node] = {}
        readers: dict[Resource, list[Node]] = {}
        edges: dict[Node, tuple[Node, ...]] = {}
        for node in nodes:
            reads, writes = self._accesses_in_order(node)
            if not reads and not writes:
                continue
            before: dict[Node, None] = {}
            for resource in writes:
                before.update(dict.fromkeys(readers.pop(resource, ())))
                if resource in last_write:
                    before[last_write[resource]] = None
                last_write[resource] = node
            for resource in reads:
                readers.setdefault(resource, []).append(node)
                if resource in last_write:
                    before[last_write[resource]] = None
            if before:
                inputs = set(node.all_input_nodes)
                edges[node] = tuple(other for other in before if other not in inputs)
        return edges

    def _accesses_in_order(self, node: Node) -> Accesses:
        """The accesses without reads of what nobody writes, which are most."""
        writers = self._writers
        if effects.is_plain_call(node):
            find = self.storage.find
            found = [root for source in node.all_input_nodes if writers.get(root := find(source))]
            return Accesses(tuple(found)) if found else _NOTHING
        reads, writes = self.accesses(node)
        return Accesses(tuple(resource for resource in reads if writers.get(resource)), writes)

    # -- keeping up to date -------------------------------------------------------------------------------------------

    def add(self, node: Node) -> None:
        """Take in a node, or read it anew after its arguments have changed."""
        if effects.is_plain_call(node):
            return
        for kept, absorbed in self.storage.add(node, self._undo):
            self._absorb(kept, absorbed)
        if effects.is_view_like(node):
            return
        self.discard(node)
        written = _writes(node)
        if written:
            self._register(node, written)

    def discard(self, node: Node) -> None:
        """Forget what the node writes, because it is erased or about to be read anew."""
        written = self._written_by.pop(node, ())
        for resource in written:
            self._writers.get(self._name(resource), {}).pop(node, None)
        if written and self._undo is not None:
            self._undo.append(lambda: self._register(node, written))

    def begin(self) -> None:
        """From here on, remember how to take changes back."""
        self._undo = []

    def keep(self) -> None:
        """Make the changes since `begin` permanent."""
        self._undo = None

    def take_back(self) -> None:
        """Undo the changes since `begin`."""
        steps, self._undo = self._undo or [], None
        for step in reversed(steps):
            step()

    def _register(self, node: Node, written: tuple[Resource, ...]) -> None:
        self._written_by[node] = written
        for resource in written:
            self._writers.setdefault(self._name(resource), {})[node] = None
        if self._undo is not None:
            self._undo.append(lambda: self.discard(node))

    def _absorb(self, kept: Node, absorbed: Node) -> None:
        moved = self._writers.pop(absorbed, None)
        if not moved:
            return
        mine = self._writers.setdefault(kept, {})
        added = [node for node in moved if node not in mine]
        mine.update(dict.fromkeys(added))
        if self._undo is not None:
            self._undo.append(lambda: self._part(absorbed, moved, mine, added))

    def _part(self, absorbed: Node, moved: dict[Node, None], mine: dict[Node, None], added: list[Node]) -> None:
        self._writers[absorbed] = moved
        for node in added:
            mine.pop(node, None)

    def _name(self, resource: Resource) -> Resource:
        return resource if isinstance(resource, Ambient) else self.storage.find(resource)

    def _around(self, root: Node) -> Iterator[Node]:
        yield from self._writers.get(root, ())
        for member in self.storage.members(root):
            for user in member.users:
                if not effects.only_looks(user):
                    yield user
                if ops.is_collective(user):
                    yield from waits_of(user)


def _both(accesses: Accesses) -> tuple[Resource, ...]:
    return accesses.reads + accesses.writes


def started_by(wait: Node) -> Node | None:
    """The start that a wait waits for; None when the graph does not hold it."""
    for value in ops.tensors(wait, ("tensor",)):
        source = value.all_input_nodes[0] if effects.is_view_like(value) and value.all_input_nodes else value
        for candidate in (value, source):
            if ops.is_collective(candidate):
                return candidate
    return None


def waits_of(start: Node) -> Iterator[Node]:
    """The waits of a start, through getitems where it returns a list."""
    for user in start.users:
        if ops.is_wait(user):
            yield user
        elif effects.is_view_like(user):
            yield from (wait for wait in user.users if ops.is_wait(wait))


class _Writing(NamedTuple):
    """What an operator writes."""

    effect: Effect
    arguments: tuple[str, ...]
    """Those whose buffers it overwrites."""
    ambient: tuple[Ambient, ...]


def _writes(node: Node) -> tuple[Resource, ...]:
    """What the node writes, buffers by any node that lies in them."""
    if isinstance(node.target, OpOverload):
        effect, arguments, ambient = _writing(node.target)
    else:
        effect = effects.effect_of(node)
        arguments, ambient = (), (Ambient.GENERATOR,) if effect is Effect.RANDOM else ()
    if effect is Effect.PURE:
        return ()
    if effect is Effect.BARRIER:
        return (Ambient.WORLD, *node.all_input_nodes)
    if effect is Effect.WAIT:
        # The wait is what completes the result, which shares its class.
        return (node,)
    return (*ops.tensors(node, arguments), *ambient)


@once_an_operator
def _writing(overload: OpOverload) -> _Writing:
    spec = ops.spec_of(overload)
    ambient: list[Ambient] = []
    # The operators that draw in place count as mutations elsewhere.
    if torch.Tag.nondeterministic_seeded in overload.tags:
        ambient.append(Ambient.GENERATOR)
    if spec is not None and spec.kind in _KEEP_ORDER:
        ambient.append(Ambient.WIRE)
    return _Writing(effects.effect_of_operator(overload), effects.written_names(overload), tuple(ambient))
