"""The order of nodes: scheduled, held against the bound on memory, carried out with the fewest moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch.fx import Node

from counterpoint.ir.edit import Transaction
from counterpoint.ir.view import GraphView
from counterpoint.schedule.clock import Played, play
from counterpoint.schedule.engine import Policy, Schedule, run
from counterpoint.schedule.memory import alive_bytes, lifetimes
from counterpoint.schedule.order import fewest_moves, order_of
from counterpoint.schedule.problem import Room
from counterpoint.schedule.reading import Reading
from counterpoint.schedule.rearrange import rearranged
from counterpoint.schedule.search import GAIN

NARROWER = 7
"""How many parts of the memory for what is under way are tried before the order is kept as it is."""

THRIFTIER = (0.5, 0.25, 0.1, 0.05)
"""Parts of it with which the order is tried again, lest it hold memory that saves no time."""


@dataclass(frozen=True)
class Placed:
    """An order, and what it is expected to take."""

    order: tuple[Node, ...]
    played: Played
    peak_bytes: int
    schedule: Schedule | None = None
    """What the order was made of; None for that of the graph."""


def alive_in(view: GraphView, order: Sequence[Node]) -> list[int]:
    """Bytes alive at each node of an order; the caller keeps all inputs."""
    held = {node for node in order if node.op in ("placeholder", "get_attr")}
    return alive_bytes(len(order), lifetimes(order, view.hazards, held))


def as_it_is(reading: Reading) -> Placed:
    """The order of the graph."""
    nodes = reading.view.nodes
    return Placed(nodes, play(reading.work), max(alive_in(reading.view, nodes), default=0))


def with_room(reading: Reading, limit_bytes: int) -> Reading:
    """The reading, told what memory is left under the limit while each step runs."""
    if not reading.steps:
        return reading
    alive = alive_in(reading.view, reading.view.nodes)
    room = Room([max(0, limit_bytes - alive[k]) for k in reading.steps])
    return replace(reading, problem=replace(reading.problem, room=room))


def choose_order(
    reading: Reading, policy: Policy, limit_bytes: int, steps: Sequence[Node] = ()
) -> tuple[Reading, Placed]:
    """The shortest of the scheduled orders that stay under the limit, or else the order as it is; and the reading with
    its steps in that order. `steps`: an order of them that was found good before."""
    best = reading, as_it_is(reading)
    placed = _within(reading, policy, limit_bytes)
    if placed is not None and placed.played.step_us < best[1].played.step_us:
        best = reading, placed
    moved = reading.following(steps) if steps else reading
    placed = _within(moved, policy, limit_bytes) if steps else None
    # Compute that moves must gain something: reading the graph with its buckets may have changed what looked better.
    if placed is not None and placed.played.step_us < best[1].played.step_us * (1 - GAIN):
        best = moved, placed
    better: tuple[Reading, Placed] | None = best
    while better is not None and policy.moves_compute:
        best = better
        better = _better(best, policy, limit_bytes)
    return best[0], _thriftier(*best, policy)


def _better(best: tuple[Reading, Placed], policy: Policy, limit_bytes: int) -> tuple[Reading, Placed] | None:
    """The shortest that is found when steps change places, if it is shorter."""
    reading, stands = best
    shortest = None
    target_us = stands.played.step_us * (1 - GAIN)
    for order in rearranged(reading.problem, stands.schedule or run(reading.problem, policy)):
        candidate = reading.reordered(order)
        placed = _within(candidate, policy, limit_bytes)
        if placed is not None and placed.played.step_us < target_us:
            shortest, target_us = (candidate, placed), placed.played.step_us
    return shortest


def _thriftier(reading: Reading, chosen: Placed, policy: Policy) -> Placed:
    """An order that takes no more than noise longer, and less memory, if less under way does it too."""
    if chosen.schedule is None:
        return chosen
    longest_us = chosen.played.step_us * (1 + GAIN)
    for part in THRIFTIER:
        placed = place(reading, run(reading.problem, _part_of(policy, part)))
        if placed.played.step_us > longest_us:
            break
        if placed.peak_bytes < chosen.peak_bytes:
            chosen = placed
    return chosen


def _part_of(policy: Policy, part: float) -> Policy:
    return replace(policy, in_flight_bytes=int(policy.in_flight_bytes * part), room=policy.room * part)


def _within(reading: Reading, policy: Policy, limit_bytes: int) -> Placed | None:
    """The scheduled order, with as much under way as the limit allows: a part of it is sought by halving."""
    shortest: Placed | None = None
    fits, part, too_much = 0.0, 1.0, 1.0
    for _ in range(NARROWER):
        placed = place(reading, run(reading.problem, _part_of(policy, part)))
        if placed.peak_bytes > limit_bytes:
            too_much = part
        else:
            fits = part
            if shortest is None or placed.played.step_us < shortest.played.step_us:
                shortest = placed
        if fits == too_much:
            break
        part = (fits + too_much) / 2
    return shortest


def place(reading: Reading, schedule: Schedule) -> Placed:
    """The order that a schedule asks for."""
    work = {item.node: item for item in reading.work}
    order = tuple(order_of(reading, schedule))
    peak = max(alive_in(reading.view, order), default=0)
    return Placed(order, play(work[node] for node in order), peak, schedule)


def put_in_order(tx: Transaction, reading: Reading, order: Sequence[Node]) -> None:
    """Move what does not stand right. Inputs stay where they are."""
    stands, wanted = ([node for node in nodes if node.op != "placeholder"] for nodes in (reading.view.nodes, order))
    for nodes, before in fewest_moves(stands, wanted):
        # What moves together keeps the order that it had, so nodes that change places move one after the other.
        for rising in _rising(nodes):
            tx.move(rising, before=before)


def _rising(nodes: Sequence[Node]) -> Iterator[list[Node]]:
    """The nodes in parts that stand in this order already."""
    found = [nodes[0]]
    for node in nodes[1:]:
        if node < found[-1]:
            yield found
            found = []
        found.append(node)
    yield found
