"""Which collectives become one: the plan of the bucketing passes, as data. Nothing here changes a graph.

Like merges only with like: kind, group, reduction, device and element type (gathers and exchanges may mix types, as
bytes). Collectives are taken in graph order; each joins the open bucket of its key unless that would close a cycle,
in which case it opens another one, so that interleaved chains still meet. A bucket that is full is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch.fx import Node

from counterpoint._torch import size_hint
from counterpoint.ir import effects, ops
from counterpoint.ir.collective import Collective, CommBlock, get_comm_block
from counterpoint.ir.merges import MergePlanner
from counterpoint.ir.ops import Form, Kind
from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.passes.book import origins_of

BUCKETABLE = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.ALL_TO_ALL)
MOVING_BYTES = frozenset({Kind.ALL_GATHER, Kind.ALL_TO_ALL})
"""Kinds that only move data, so that members of several element types can travel as bytes."""

OPEN_AT_ONCE = 4
"""How many buckets of one key may grow side by side. More finds hardly more merges and costs more time."""


@dataclass(frozen=True)
class Key:
    """What members of one bucket have in common."""

    kind: Kind
    group: Hashable
    device: torch.device
    reduce_op: str | None
    dtype: torch.dtype | None
    """None where element types may differ."""
    label: Hashable = None
    """What else the caller tells apart."""


@dataclass(frozen=True)
class Member:
    """A collective that may be merged."""

    block: CommBlock
    key: Key
    nbytes: int
    """The larger of what is sent and what is received; a symbolic size counts as its hint."""

    @property
    def collective(self) -> Collective:
        """The collective itself."""
        return self.block.collective

    @property
    def start(self) -> Node:
        """The node that starts it."""
        return self.block.collective.start

    @property
    def wait(self) -> Node:
        """The node that waits for it."""
        return self.block.waits[0]


@dataclass(frozen=True, eq=False)
class Bucket:
    """Members that become one collective, in graph order."""

    key: Key
    members: tuple[Member, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all members."""
        return sum(member.nbytes for member in self.members)


@dataclass(frozen=True)
class BucketPlan:
    """The buckets of a graph, and why the others are in none."""

    buckets: tuple[Bucket, ...]
    refusals: tuple[tuple[Node, Refusal], ...]


@dataclass
class _Open:
    """A bucket that still grows."""

    index: int
    members: list[Member] = field(default_factory=list)
    nbytes: int = 0
    full: bool = False
    """Whether it was closed because the next member did not fit."""


CapsOf = Callable[[list[Member]], Mapping[Key, Callable[[int], int]]]
"""Chooses the cap of the n-th bucket of each key, given all that could be in one."""


@dataclass(frozen=True, kw_only=True)
class BucketRules:
    """How big buckets may be, and what may share one."""

    kinds: frozenset[Kind]
    cap_bytes: Callable[[int], int]
    """The cap of the n-th bucket of a key."""
    multi_dtype: bool = False
    fill_past_cap: bool = False
    """A bucket is full once it holds its cap, and may end up larger; otherwise it never holds more."""
    caps_of: CapsOf | None = None
    """Without it `cap_bytes` holds for every key."""

    def admits(self, bucket: _Open, nbytes: int) -> bool:
        """Whether so many bytes more still fit."""
        cap = self.cap_bytes(bucket.index)
        return bucket.nbytes < cap if self.fill_past_cap else bucket.nbytes + nbytes <= cap


class Bound(Protocol):
    """What may keep a member out of a bucket beside its size."""

    def refuse(self, first: Member, member: Member) -> Refusal | None:
        """Why the member may not join the bucket that begins with the first one."""

    def join(self, first: Member, member: Member) -> None:
        """The member has joined it."""


def plan_buckets(
    view: GraphView, rules: BucketRules, bound: Callable[[list[Member]], Bound | None] = lambda _: None
) -> BucketPlan:
    """The buckets that the rules allow in this graph; `bound` is made of all that could be in one.

    What does the work of several collectives already has the size that a pass before gave it, and stays as it is.
    """
    starts = [start for start in view.starts if kind_of(start) in rules.kinds and len(origins_of(start)) < 2]
    read = [(start, read_member(start, rules.multi_dtype)) for start in starts]
    members = [member for _, member in read if isinstance(member, Member)]
    plan = plan_members(members, view.merges(), rules, bound(members))
    unreadable = tuple((start, why) for start, why in read if isinstance(why, Refusal))
    return BucketPlan(plan.buckets, unreadable + plan.refusals)


def plan_members(
    members: Iterable[Member], planner: MergePlanner, rules: BucketRules, bound: Bound | None = None
) -> BucketPlan:
    """The buckets of these members, filled in the order in which they are given."""
    members, shelves = list(members), dict[Key, _Shelf]()
    caps = rules.caps_of(members) if rules.caps_of is not None else {}
    for member in members:
        shelf = shelves.get(member.key)
        if shelf is None:
            own = replace(rules, cap_bytes=caps.get(member.key, rules.cap_bytes))
            shelf = shelves[member.key] = _Shelf(member.key, own)
        shelf.put(member, planner, bound)
    buckets = sorted((bucket for shelf in shelves.values() for bucket in shelf.buckets()), key=_place)
    alone = tuple((member.start, why) for shelf in shelves.values() for member, why in shelf.alone())
    return BucketPlan(tuple(buckets), alone)


def kind_of(start: Node) -> Kind | None:
    """What a start does."""
    spec = ops.spec_of(start.target)
    return spec.kind if spec is not None else None


def _place(bucket: Bucket) -> Node:
    return bucket.members[0].start


class _Shelf:
    """The buckets of one key."""

    def __init__(self, key: Key, rules: BucketRules) -> None:
        self.key, self.rules = key, rules
        self.opened: list[_Open] = []
        self.closed: list[_Open] = []
        self.refused: dict[Node, Refusal] = {}

    def put(self, member: Member, planner: MergePlanner, bound: Bound | None) -> None:
        """Into the first open bucket that takes it, or into a new one."""
        for bucket in self.opened:
            if not self.rules.admits(bucket, member.nbytes):
                continue
            first = bucket.members[0]
            refusal = bound.refuse(first, member) if bound is not None else None
            refusal = refusal or planner.try_merge([first.start, member.start])
            if refusal is None:
                if bound is not None:
                    bound.join(first, member)
                bucket.members.append(member)
                bucket.nbytes += member.nbytes
                return
            self.refused[member.start] = refusal
            # Should nobody else join it either, this is why the first one is alone too.
            self.refused.setdefault(first.start, _seen_from(first, member, refusal))
        self._open(member)

    def _open(self, member: Member) -> None:
        full = [b for b in self.opened if not self.rules.admits(b, member.nbytes)]
        for bucket in full:
            bucket.full = True
        for bucket in full or self.opened[: len(self.opened) + 1 - OPEN_AT_ONCE]:
            self.opened.remove(bucket)
            self.closed.append(bucket)
        index = len(self.opened) + len(self.closed)
        self.opened.append(_Open(index, [member], member.nbytes))

    def buckets(self) -> Iterator[Bucket]:
        """Those with more than one member."""
        for bucket in (*self.closed, *self.opened):
            if len(bucket.members) > 1:
                yield Bucket(self.key, tuple(bucket.members))

    def alone(self) -> Iterator[tuple[Member, Refusal]]:
        """Members that found no company, and why."""
        for bucket in (*self.closed, *self.opened):
            if len(bucket.members) == 1:
                member = bucket.members[0]
                yield member, self.refused.get(member.start) or self._why_alone(member, bucket)

    def _why_alone(self, member: Member, bucket: _Open) -> Refusal:
        cap = self.rules.cap_bytes(bucket.index)
        if member.nbytes >= cap or bucket.full:
            return Refusal("bucket-full", member.start.name, f"{member.nbytes} bytes, the cap is {cap}")
        return Refusal("no-partner", member.start.name, f"{self.key.kind.value} over group {self.key.group}")


def _seen_from(first: Member, member: Member, refusal: Refusal) -> Refusal:
    """Why the two are not merged, where the first one itself is what stands in the way."""
    if refusal.node != first.start.name:
        return refusal
    return replace(refusal, node=member.start.name, detail="it needs this one, directly or through others")


def read_member(start: Node, multi_dtype: bool) -> Member | Refusal:
    """The collective as a bucket would take it, or why it cannot."""
    block = get_comm_block(start)
    if isinstance(block, Refusal):
        return block
    collective = block.collective
    spec = collective.spec
    if spec.coalesced or len(collective.inputs) != 1 or not spec.waits:
        return Refusal("bucket-form", start.name, f"{spec.name} is already a bucket, or waits for itself")
    if spec.kind is not Kind.ALL_REDUCE and not collective.sent.shapes[0]:
        return Refusal("bucket-form", start.name, "it has no dimension along which it gathers or scatters")
    refusal = _refuse_written(block)
    if refusal is not None:
        return refusal
    nbytes = [size_hint(payload.nbytes) for payload in (collective.sent, collective.received)]
    if None in nbytes:
        return Refusal("unknown-size", start.name, f"{collective.sent.nbytes} bytes")
    mixed = multi_dtype and spec.kind in MOVING_BYTES
    key = Key(
        kind=spec.kind,
        group=collective.group.key,
        device=collective.sent.devices[0],
        reduce_op=collective.reduce_op,
        dtype=None if mixed else collective.sent.dtypes[0],
    )
    return Member(block, key, max(n for n in nbytes if n is not None))


def _refuse_written(block: CommBlock) -> Refusal | None:
    """An in-place collective may be merged when its buffer is read through its wait only."""
    collective = block.collective
    if collective.spec.form is Form.FUNCTIONAL:
        return None
    start = collective.start
    if collective.spec.form is Form.OUT:
        return Refusal("bucket-form", start.name, "it writes into a buffer that it is given")
    buffer = collective.inputs[0]
    others = [user.name for user in buffer.users if user is not start]
    if others or buffer.op in ("placeholder", "get_attr") or _is_alias(buffer):
        what = f"{buffer.name} is used by {', '.join(others)}" if others else f"{buffer.name} is not its own"
        return Refusal("written-buffer", start.name, what)
    return None


def _is_alias(node: Node) -> bool:
    return bool(effects.aliased_nodes(node))


def starts_of(members: Iterable[Member]) -> list[Node]:
    """The start nodes of some members."""
    return [member.start for member in members]
