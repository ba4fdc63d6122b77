"""Which collectives share a bucket, found by playing the schedules that candidates lead to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from torch.fx import Node

from counterpoint.cost.model import CostModel
from counterpoint.ir.ops import Kind
from counterpoint.ir.view import GraphView
from counterpoint.passes.bucket_plan import BUCKETABLE, Bucket, Key, Member, kind_of, read_member
from counterpoint.schedule.engine import Policy
from counterpoint.schedule.keys import due_steps
from counterpoint.schedule.problem import Price, Problem, Transfer
from counterpoint.schedule.reading import Reading
from counterpoint.schedule.search import Buckets, Search, Shelf, Split


class Choice(NamedTuple):
    """What shares a bucket, and the order of compute with which it is best."""

    buckets: tuple[Bucket, ...] = ()
    steps: tuple[Node, ...] = ()
    """All steps; none where they stay as they are."""


def choose(reading: Reading, model: CostModel, policy: Policy, plays: int) -> Choice:
    """What makes the step shortest, as far as the budget of plays goes."""
    members = _members(reading)
    shelves = _shelves(members, reading.problem)
    if not shelves:
        return Choice()
    search = Search(reading.problem, policy, price_of(model), plays, _split_of(reading))
    search.sizes(shelves)
    if policy.moves_compute:
        search.rearrange()
    search.boundaries()
    found = (bucket for _, buckets in sorted(search.chosen.items()) for bucket in buckets)
    buckets = tuple(_allowed(reading.view, ([members[k] for k in bucket] for bucket in found)))
    return Choice(buckets, tuple(reading.view.nodes[reading.steps[k]] for k in search.order))


def _split_of(reading: Reading) -> Split:
    """Takes buckets apart where a member depends on another, by whatever way."""
    starts = [reading.start(number) for number in range(len(reading.starts))]
    place = {start: k for k, start in enumerate(reading.view.starts)}
    own = [1 << place[start] for start in starts]
    needs = [reading.view.ancestor_bits(start) for start in starts]

    @cache
    def split(bucket: tuple[int, ...]) -> Buckets:
        found: list[tuple[int, ...]] = []
        first = members = needed = 0
        for at, number in enumerate(bucket):
            if needs[number] & members or own[number] & needed:
                found.append(bucket[first:at])
                first, members, needed = at, 0, 0
            members |= own[number]
            needed |= needs[number]
        return (*found, bucket[first:])

    return split


def price_of(model: CostModel) -> Price:
    """What merged transfers take."""

    def price(joined: Transfer) -> Transfer:
        processor = model.processor(joined.device_type)
        sent = joined.nbytes / len(joined.ranks) if joined.grows else joined.nbytes
        sorts = joined.kind in (Kind.ALL_GATHER, Kind.ALL_TO_ALL)
        # Packing and sorting read and write everything once.
        return replace(
            joined,
            network_us=model.collective_us(joined.kind, joined.nbytes, joined.ranks, device_type=joined.device_type),
            launch_us=joined.launch_us + processor.memory_us(2 * sent),
            land_us=joined.land_us + (processor.memory_us(2 * joined.nbytes) if sorts else 0.0),
            # What is received is there twice while it is taken apart.
            held_bytes=2 * joined.held_bytes if joined.grows else joined.held_bytes,
        )

    return price


def _members(reading: Reading) -> dict[int, Member]:
    """Those of the transfers that may be merged at all, by number."""
    found: dict[int, Member] = {}
    for number in range(len(reading.starts)):
        start = reading.start(number)
        if kind_of(start) in BUCKETABLE:
            member = read_member(start, multi_dtype=False)
            if isinstance(member, Member):
                found[number] = member
    return found


def _shelves(members: dict[int, Member], problem: Problem) -> list[Shelf]:
    """Members by what they have in common; gathers in the order of use, the others as they become ready."""
    by_key: dict[Key, list[int]] = {}
    for number, member in members.items():
        by_key.setdefault(member.key, []).append(number)

    due = due_steps(problem)

    def rank(number: int) -> tuple[int, int]:
        transfer = problem.transfers[number]
        return (due[number] if transfer.grows else transfer.after, number)

    shelves = (sorted(numbers, key=rank) for numbers in by_key.values() if len(numbers) > 1)
    return [Shelf(tuple(numbers), tuple(members[n].nbytes for n in numbers)) for numbers in shelves]


def _allowed(view: GraphView, candidates: Iterable[Sequence[Member]]) -> Iterable[Bucket]:
    """Those of the buckets that close no cycle; what a cycle keeps out of one begins another."""
    planner = view.merges()
    for candidate in candidates:
        bucket: list[Member] = []
        for member in candidate:
            if bucket and planner.try_merge([bucket[0].start, member.start]) is not None:
                yield from _as_bucket(bucket)
                bucket = []
            bucket.append(member)
        yield from _as_bucket(bucket)


def _as_bucket(members: list[Member]) -> Iterable[Bucket]:
    if len(members) > 1:
        yield Bucket(members[0].key, tuple(sorted(members, key=lambda member: member.start)))
