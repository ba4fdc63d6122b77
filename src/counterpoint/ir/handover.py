"""New nodes that read buffers in the place of erased ones: on which side of each write they must stand.

A transaction that packs what two erased nodes read into one new node moves two reads, though no node has moved. So the
new reader keeps the order that the erased readers had with whatever writes those buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch.fx import Node

from counterpoint._torch import is_erased
from counterpoint.ir import effects, ops
from counterpoint.ir.alias import Ambient, Hazards, Resource, started_by
from counterpoint.ir.effects import Effect
from counterpoint.ir.legality import Changes, Place
from counterpoint.ir.reason import Refusal


def required_order(changes: Changes, hazards: Hazards) -> list[tuple[Node, Node]]:
    """Pairs of a new reader and an old writer; the first of each pair must stand before the second.

    A write that stood between two erased readers gives both orders, which no arrangement can meet.
    """
    spans = erased_reads(changes, hazards)
    if not spans:
        return []
    new = set(changes.made)
    found: list[tuple[Node, Node]] = []
    for reader, resource in _new_reads(changes, hazards, spans):
        first, last = spans[resource]
        for writer in hazards.writers(resource):
            if writer in new or is_erased(writer):
                continue
            if changes.was(writer) < last:
                found.append((writer, reader))
            if changes.was(writer) > first:
                found.append((reader, writer))
    return found


def refuse_handover(changes: Changes, hazards: Hazards) -> Refusal | None:
    """Every new reader stands where the erased ones stood, as far as writes can tell."""
    for before, after in required_order(changes, hazards):
        if not before < after:
            return Refusal("hazard-order", after.name, f"what it reads or writes must come after {before.name}")
    return None


def erased_reads(changes: Changes, hazards: Hazards) -> dict[Resource, tuple[Place, Place]]:
    """Where the first and the last erased reader of each buffer stood, for buffers that some old node writes."""
    spans: dict[Resource, tuple[Place, Place]] = {}
    written = hazards.written_by_others({*changes.erased, *changes.made})
    if not written:
        return spans
    living = _Living(changes.erased)
    for node, used in changes.erased.items():
        if effects.is_view_like(node):
            continue
        waits = ops.is_wait(node)
        found = dict.fromkeys(
            hazards.storage.find(source) for operand in used for source in living.behind(operand, waits)
        )
        resources: list[Resource] = [resource for resource in found if resource in written]
        if Ambient.WORLD in written and _sees_barriers(node):
            resources.append(Ambient.WORLD)
        place = changes.was(node) if resources else ()
        for resource in resources:
            first, last = spans.get(resource, (place, place))
            spans[resource] = min(first, place), max(last, place)
    return spans


def _sees_barriers(node: Node) -> bool:
    return effects.effect_of(node) not in (Effect.PURE, Effect.BARRIER)


class _Living:
    """What is left of the operands of erased nodes, views that are gone too looked through."""

    def __init__(self, erased: Mapping[Node, tuple[Node, ...]]) -> None:
        self._erased = erased
        self._known: dict[tuple[Node, bool], tuple[Node, ...]] = {}

    def behind(self, operand: Node, waits: bool) -> tuple[Node, ...]:
        """What an operand stands for; a wait also holds what its start read."""
        if operand not in self._erased:
            return (operand,)
        if not (effects.is_view_like(operand) or (waits and ops.is_collective(operand))):
            return ()
        # The pieces of a tensor all look at one, which is looked through once.
        found = self._known.get((operand, waits))
        if found is None:
            sources = self._erased[operand]
            found = tuple(dict.fromkeys(living for source in sources for living in self.behind(source, waits)))
            self._known[operand, waits] = found
        return found


def _new_reads(
    changes: Changes, hazards: Hazards, spans: dict[Resource, tuple[Place, Place]]
) -> Iterator[tuple[Node, Resource]]:
    """The new nodes that read one of these buffers, directly or through new views."""
    seen: dict[Node, dict[Node, None]] = {node: {} for node in changes.made}
    for node in sorted(changes.made):
        start = started_by(node) if ops.is_wait(node) else None
        operands = (*node.all_input_nodes, *(start.all_input_nodes if start is not None else ()))
        for source in operands:
            if source not in seen:
                resource = hazards.storage.find(source)
                if resource in spans:
                    seen[node][resource] = None
            elif effects.aliased_nodes(source):
                seen[node].update(seen[source])
        if Ambient.WORLD in spans and _sees_barriers(node):
            yield node, Ambient.WORLD
        yield from ((node, resource) for resource in seen[node])
