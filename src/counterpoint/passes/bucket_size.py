"""The right size of a bucket: large enough that latency hardly counts, small enough to start early and to copy little.

One large bucket is best where calls are what costs; where bandwidth is, it only delays: nothing travels until
everything is there, and packing copies it all. So some caps are tried out, on paper: `step_us` plays the step with one
compute stream and one channel, and the smallest cap whose step is within `SLACK` of the best one is taken.

Everything here is a pure function of sizes, positions, link and processor, so all ranks find the same caps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from counterpoint.cost.compute import Processor, elapsed_us, processor_of
from counterpoint.cost.link import Link, traffic_bytes
from counterpoint.cost.model import CostModel
from counterpoint.cost.table import LinkTable, typical
from counterpoint.ir.ops import Kind
from counterpoint.ir.view import GraphView
from counterpoint.passes.base import PassContext
from counterpoint.passes.bucket_plan import Key, Member

LATENCY_SHARE = 0.025
"""A bucket of the rule's size adds this part to its transfer time. Larger ones gain next to nothing."""
SLACK = 0.01
"""Caps whose steps differ by less are as good as each other."""
FIRST_PARTS = (1, 4, 16)
"""The first bucket may be this much smaller than the others, so that communication begins early."""

CapOf = Callable[[int], int]
"""The cap in bytes of the n-th bucket."""


@dataclass(frozen=True)
class Caps:
    """The sizes at which buckets are full."""

    first_bytes: int
    rest_bytes: int

    def __call__(self, index: int) -> int:
        return self.first_bytes if index == 0 else self.rest_bytes


class Item(NamedTuple):
    """A collective, as far as sizes go. The times are of compute alone, from the beginning of the graph."""

    nbytes: int
    """What counts against the cap."""
    stands_us: float
    """Where it starts in the graph."""
    ready_us: float
    """When its operands are there."""
    needed_us: float
    """When its result is used."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What holds for all collectives that may share a bucket."""

    kind: Kind
    ranks: int
    link: Link
    processor: Processor
    compute_us: float
    """All compute of the graph."""
    packs: bool = True
    """Whether sharing a bucket copies the payload."""
    told: Callable[[float], float] | None = None
    """What a collective of so many bytes takes, where more is known than the link."""

    def call_us(self, nbytes: float) -> float:
        """One collective."""
        if self.told is not None:
            return self.told(nbytes)
        return self.link.call_us(traffic_bytes(self.kind, nbytes, self.ranks))

    def pack_us(self, nbytes: float) -> float:
        """Copying side by side what is sent; read once and written once. A gather sends its part only."""
        sent = nbytes / self.ranks if self.kind is Kind.ALL_GATHER else nbytes
        return self.processor.memory_us(2 * sent) if self.packs else 0.0

    def unpack_us(self, nbytes: float) -> float:
        """Sorting what arrived rank by rank. Reductions leave each member in one piece, which is a view."""
        sorts = self.kind in (Kind.ALL_GATHER, Kind.ALL_TO_ALL)
        return self.processor.memory_us(2 * nbytes) if self.packs and sorts else 0.0


def rule_bytes(kind: Kind, ranks: int, link: Link, processor: Processor) -> int:
    """The size whose transfer takes so long that the rest of the call is no more than `LATENCY_SHARE` of it."""
    per_byte = traffic_bytes(kind, 1.0, ranks)
    fixed_us = link.latency_us + processor.launch_us
    return max(1, int(link.bytes_in_us(fixed_us / LATENCY_SHARE) / per_byte)) if per_byte else 1


def choose_caps(items: Sequence[Item], terms: Terms) -> Caps:
    """The caps for these collectives, which stand in graph order. Never larger than the rule's size."""
    most = rule_bytes(terms.kind, terms.ranks, terms.link, terms.processor)
    if len(items) < 2:
        return Caps(most, most)
    tried = [(step_us(items, caps, terms), caps) for caps in _candidates(items, most)]
    best = min(step for step, _ in tried)
    return next(caps for step, caps in tried if step <= best * (1 + SLACK))


def _candidates(items: Sequence[Item], most: int) -> Iterator[Caps]:
    """Caps from small to large: none share a bucket, then doubling up to the most; each also with a smaller first."""
    cap, end = max(1, min(item.nbytes for item in items)), min(most, sum(item.nbytes for item in items))
    while cap < end:
        yield from (Caps(cap // part, cap) for part in FIRST_PARTS if part == 1 or cap // part >= items[0].nbytes)
        cap *= 2
    yield from (Caps(end // part, most) for part in FIRST_PARTS[:0:-1])
    yield Caps(most, most)


def step_us(items: Sequence[Item], caps: CapOf, terms: Terms) -> float:
    """How long the step takes with these caps: compute, packing, and what of the communication is not hidden."""
    buckets = list(split(items, caps))
    launches = [(max(part[0].stands_us, max(item.ready_us for item in part)), 0, k) for k, part in enumerate(buckets)]
    uses = [(max(min(item.needed_us for item in p), launches[k][0]), 1, k) for k, p in enumerate(buckets)]
    sizes = [sum(item.nbytes for item in part) for part in buckets]
    stalled = channel = 0.0
    ends = [0.0] * len(buckets)
    for position, use, k in sorted((*launches, *uses)):
        shared = len(buckets[k]) > 1
        if use:
            stalled = max(stalled, ends[k] - position) + (terms.unpack_us(sizes[k]) if shared else 0.0)
        else:
            stalled += terms.processor.launch_us + (terms.pack_us(sizes[k]) if shared else 0.0)
            ends[k] = channel = max(channel, position + stalled) + terms.call_us(sizes[k])
    return terms.compute_us + stalled


def split(items: Sequence[Item], caps: CapOf) -> Iterator[Sequence[Item]]:
    """The items in buckets, each as full as its cap allows."""
    upto = list(accumulate((item.nbytes for item in items), initial=0))
    at = index = 0
    while at < len(items):
        end = max(at + 1, bisect_right(upto, upto[at] + caps(index)) - 1)
        yield items[at:end]
        at, index = end, index + 1


@dataclass(frozen=True)
class AutoSize:
    """Finds the caps for the collectives of one graph, by what the context knows about links."""

    context: PassContext
    view: GraphView
    packs: bool = True
    """Whether sharing a bucket copies the payload."""
    first_cap: int | None = None
    """The size of the first bucket, where that is given."""

    def caps(self, members: Iterable[Member]) -> Mapping[Key, CapOf]:
        """The caps for every key of these collectives."""
        shelves: dict[Key, list[Member]] = {}
        for member in members:
            shelves.setdefault(member.key, []).append(member)
        clocks = {kind: _Clock(self.view, self._processor(kind)) for kind in {key.device.type for key in shelves}}
        return {key: self._choose(key, shelf, clocks[key.device.type]) for key, shelf in shelves.items()}

    def _processor(self, device_type: str) -> Processor:
        model = self.context.cost_model
        return processor_of(device_type) if model is None else model.processor(device_type)

    def _choose(self, key: Key, shelf: list[Member], clock: _Clock) -> CapOf:
        ranks = self.context.groups.get(str(key.group), ())
        model, device = self.context.cost_model, key.device.type
        told = None
        if ranks and model is not None and model.is_informed:
            told = partial(_told_us, model, key.kind, ranks, device)
        terms = Terms(
            kind=key.kind,
            ranks=len(ranks) or shelf[0].collective.group.size or 2,
            link=link_of(key, self.context),
            processor=clock.processor,
            compute_us=clock.total_us,
            packs=self.packs,
            told=told,
        )
        chosen = choose_caps([clock.item(member) for member in shelf], terms)
        return chosen if self.first_cap is None else replace(chosen, first_bytes=self.first_cap)


def _told_us(model: CostModel, kind: Kind, ranks: Sequence[int], device_type: str, nbytes: float) -> float:
    return model.collective_us(kind, nbytes, ranks, device_type=device_type)


def link_of(key: Key, context: PassContext) -> Link:
    """The link of a group: as the options say, else as measured, else as described or usual for the device."""
    ranks, model = context.groups.get(str(key.group), ()), context.cost_model
    if ranks and model is not None and model.is_informed:
        return model.link(ranks, key.device.type)
    table = context.topology if isinstance(context.topology, LinkTable) else LinkTable()
    link = table.link(ranks) or typical(key.device.type)
    options = context.options
    given = {"latency_us": options.latency_us, "bandwidth_gbps": options.bandwidth_gbps}
    return replace(link, **{name: value for name, value in given.items() if value is not None})


class _Clock:
    """When each node of a graph would run on one processor."""

    def __init__(self, view: GraphView, processor: Processor) -> None:
        self.view, self.processor = view, processor
        self.elapsed = elapsed_us(view.nodes, processor)

    @property
    def total_us(self) -> float:
        """All compute of the graph."""
        return self.elapsed[-1]

    def item(self, member: Member) -> Item:
        """A collective with its times."""
        view, start = self.view, member.start
        before = view.earliest(start)
        uses = [view.index(user) for out in member.block.outputs for user in out.users if user.op != "output"]
        return Item(
            nbytes=member.nbytes,
            stands_us=self.elapsed[view.index(start)],
            ready_us=self.elapsed[view.index(before) + 1] if before is not None else 0.0,
            needed_us=self.elapsed[min(uses)] if uses else self.total_us,
        )
