"""May these changes stand? The checks of a commit; their cost grows with the changes, never with the graph."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch.fx import Graph, Node

from counterpoint._torch import is_erased, place_of
from counterpoint.ir.alias import Hazards, Resource
from counterpoint.ir.reason import Refusal
from counterpoint.ir.undo import UndoLog

Place = tuple[int, ...]


@dataclass(frozen=True)
class Changes:
    """What one transaction did, in order of first touch. Nodes that it both made and erased do not occur."""

    graph: Graph
    why: str
    made: tuple[Node, ...]
    changed: tuple[Node, ...]
    """Nodes of before with other arguments."""
    moved: tuple[Node, ...]
    """Nodes of before that were moved."""
    erased: dict[Node, tuple[Node, ...]]
    """Nodes of before that are gone, and what they used."""
    places: dict[Node, Place] = field(repr=False)
    """Where each moved node stood."""

    @staticmethod
    def of(log: UndoLog, why: str) -> Changes:
        """The changes that a log holds."""

        def surviving(nodes: Iterable[Node]) -> tuple[Node, ...]:
            return tuple(node for node in nodes if node not in log.erased and node not in log.made)

        return Changes(
            graph=log.graph,
            why=why,
            made=tuple(node for node in log.made if node not in log.erased),
            changed=surviving(log.changed),
            moved=surviving(log.moved),
            erased={node: used for node, used in log.erased.items() if node not in log.made},
            places=log.moved,
        )

    def was(self, node: Node) -> Place:
        """Where a node of before stood, for comparing with other such places."""
        return self.places.get(node) or place_of(node)


def refuse_order(changes: Changes) -> Refusal | None:
    """Every operand stands before its use, placeholders first, the output last."""
    touched = dict.fromkeys((*changes.made, *changes.changed, *changes.moved))
    for node in touched:
        for source in node.all_input_nodes:
            if is_erased(source):
                return Refusal("use-before-made", node.name, f"its operand {source.name} has been erased")
            if not source < node:
                return Refusal("use-before-made", node.name, f"its operand {source.name} comes later")
    for node in (*changes.made, *changes.moved):
        for user in node.users:
            if not node < user:
                return Refusal("use-before-made", user.name, f"its operand {node.name} comes later")
        if node.next.op == "placeholder" or node.prev.op == "output":
            return Refusal("graph-form", node.name, f"between {node.prev.name} and {node.next.name}")
    return None


def refuse_hazards(changes: Changes, hazards: Hazards) -> Refusal | None:
    """Nodes of before and after that conflict stand in the order in which they stood."""
    writers, readers = dict[Resource, None](), dict[Resource, list[Node]]()
    for node in changes.moved:
        reads, writes = hazards.accesses(node)
        writers.update(dict.fromkeys(writes))
        for resource in reads:
            if hazards.is_written(resource):
                readers.setdefault(resource, []).append(node)
    new = set(changes.made)
    for resource in writers:
        lane = sorted((n for n in hazards.touching(resource) if n not in new), key=changes.was)
        if refusal := _refuse_lane(lane, resource, hazards):
            return refusal
    for resource, moved in readers.items():
        if resource not in writers:
            lane = sorted(node for node in hazards.writers(resource) if node not in new)
            if refusal := _refuse_crossing(moved, lane, changes):
                return refusal
    return None


def _refuse_lane(lane: list[Node], resource: Resource, hazards: Hazards) -> Refusal | None:
    """Some node that writes was moved: compare all that touch the resource, given in their old order."""
    writers = set(hazards.writers(resource))
    last_write: Node | None = None
    last: Node | None = None
    for node in lane:
        limit = last if node in writers else last_write
        if limit is not None and not limit < node:
            return Refusal("hazard-order", node.name, f"it stood after {limit.name}")
        if last is None or last < node:
            last = node
        if node in writers:
            last_write = node
    return None


def _refuse_crossing(moved: list[Node], writers: list[Node], changes: Changes) -> Refusal | None:
    """Only readers were moved: each must have the same writers before it as it had."""
    places = [place_of(writer) for writer in writers]
    for node in moved:
        had, has = bisect(places, changes.was(node)), bisect(places, place_of(node))
        if had != has:
            crossed = writers[min(had, has)]
            return Refusal("hazard-order", node.name, f"it has crossed {crossed.name}")
    return None
