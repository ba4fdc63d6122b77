"""The bucketing passes: many small collectives become few large ones. See `bucket_plan` and `bucket_merge`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from counterpoint.ir.ops import Kind
from counterpoint.ir.view import GraphView
from counterpoint.options import option
from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.book import origins_of
from counterpoint.passes.bucket_merge import BucketMode, merge
from counterpoint.passes.bucket_plan import Bound, BucketRules, Member, plan_buckets, starts_of
from counterpoint.passes.bucket_size import AutoSize
from counterpoint.passes.contract import Contract
from counterpoint.passes.gathered_memory import GatheredMemory
from counterpoint.passes.rounding import refuse_rounding

MB = 1024 * 1024
FALLBACK_MB = 25.0
"""The cap of rules that are asked for without a graph to fit it to."""


@dataclass(frozen=True, kw_only=True)
class _BucketPass(Pass):
    """What the bucketing passes share."""

    kind: ClassVar[Kind]

    cap_mb: float | None = option(
        None,
        help="size at which a bucket is full; auto weighs latency against overlap",
        unit="MB",
        minimum=0.0,
        none="auto",
    )
    first_cap_mb: float | None = option(
        None,
        help="size at which the first bucket of a group is full; auto as cap-mb",
        unit="MB",
        minimum=0.0,
        none="auto",
    )
    mode: BucketMode = option(BucketMode.FUNCTIONAL, help="how members share one collective")

    def rules(self) -> BucketRules:
        """What may be merged."""
        return BucketRules(kinds=frozenset({self.kind}), cap_bytes=self._cap_bytes)

    def bound(self, view: GraphView, members: list[Member]) -> Bound | None:
        """What keeps a member out of a bucket beside the cap."""
        return None

    def run(self, context: PassContext) -> None:
        """Plan, then merge."""
        view = context.editor.view()
        plan = plan_buckets(view, self._sized(context, view), partial(self.bound, view))
        for start, refusal in plan.refusals:
            context.ledger.left_alone(start, refusal)
        rounding = {bucket: refuse_rounding(context, bucket) for bucket in plan.buckets}
        chosen = [bucket for bucket, refusal in rounding.items() if refusal is None]
        # Asked for before the starts are gone.
        origins = {b: [o for start in starts_of(b.members) for o in origins_of(start)] for b in plan.buckets}
        outcome = rounding | dict(zip(chosen, merge(context.editor, chosen, self.mode), strict=True))
        for number, (bucket, why) in enumerate(outcome.items()):
            if why is None:
                into = f"{self.kind.value} bucket {number} of {len(bucket.members)}"
                context.ledger.bucketed(origins[bucket], into)
            else:
                context.ledger.left_alone(origins[bucket], why)

    def _sized(self, context: PassContext, view: GraphView) -> BucketRules:
        """The rules, with caps that fit the links where none is given."""
        if self.cap_mb is not None:
            return self.rules()
        sizes = AutoSize(context, view, packs=self.mode is not BucketMode.COALESCED, first_cap=self._first_cap)
        return replace(self.rules(), caps_of=sizes.caps)

    @property
    def _first_cap(self) -> int | None:
        return int(self.first_cap_mb * MB) if self.first_cap_mb is not None else None

    def _cap_bytes(self, index: int) -> int:
        first = self._first_cap if index == 0 else None
        return first if first is not None else int((self.cap_mb if self.cap_mb is not None else FALLBACK_MB) * MB)


@dataclass(frozen=True, kw_only=True)
class BucketAllGather(_BucketPass):
    """Merges all-gathers into few large ones.

    Does: gathers of one group travel side by side in one tensor; the gathered tensor is taken apart behind the wait.

    Fires when: two or more gathers of one group and device do not depend on each other and fit under the cap; of one
    element type, or of any with multi-dtype, where they travel as bytes; not with mode=coalesced, which packs nothing.

    Before and after:

        a: f32[8] = all_gather(x); b: f32[16] = all_gather(y)
        p = cat([x, y]); g = all_gather(p); a, b = split(g.reshape(ranks, -1))

    Never: changes a bit of a result, merges across groups or devices, closes a cycle of collectives that wait for
    each other, or, with max-gathered-mb, makes more gathered memory alive at once than that.
    """

    name: ClassVar[str] = "bucket-all-gather"
    contract: ClassVar[Contract] = Contract(provides=frozenset({"bucketed-all-gather"}))
    kind: ClassVar[Kind] = Kind.ALL_GATHER

    multi_dtype: bool = option(
        False, help="let gathers of different element types share a bucket, as bytes; not coalesced"
    )
    max_gathered_mb: float | None = option(
        None, help="most gathered memory that buckets may keep alive at once", unit="MB", minimum=0.0
    )

    def bound(self, view: GraphView, members: list[Member]) -> Bound | None:
        """A bucket gathers its members earlier than they were, which costs memory until they are used."""
        limit = self.max_gathered_mb
        return None if limit is None else GatheredMemory(view, members, int(limit * MB))

    def rules(self) -> BucketRules:
        """Gathers only move data, so types may mix."""
        return replace(super().rules(), multi_dtype=self.multi_dtype and self.mode is not BucketMode.COALESCED)


@dataclass(frozen=True, kw_only=True)
class BucketReduceScatter(_BucketPass):
    """Merges reduce-scatters into few large ones.

    Does: row r of the merged input holds what every member sends to rank r; each rank takes its row apart.

    Fires when: two or more reduce-scatters of one group, reduction, device and element type do not depend on each
    other and fit under the cap.

    Before and after:

        a = reduce_scatter(x, "sum"); b = reduce_scatter(y, "sum")
        p = cat([x.reshape(ranks, -1), y.reshape(ranks, -1)], 1); a, b = split(reduce_scatter(p, "sum"))

    Never: mixes groups, reductions or element types. Sums of floats may be added in another order by the backend;
    `bitwise=True` forbids that.
    """

    name: ClassVar[str] = "bucket-reduce-scatter"
    contract: ClassVar[Contract] = Contract(provides=frozenset({"bucketed-reduce-scatter"}))
    kind: ClassVar[Kind] = Kind.REDUCE_SCATTER


@dataclass(frozen=True, kw_only=True)
class BucketAllReduce(_BucketPass):
    """Merges all-reduces into few large ones.

    Does: members travel side by side in one tensor; the result is taken apart as views, without a copy.

    Fires when: two or more all-reduces of one group, reduction, device and element type do not depend on each other
    and fit under the cap; in-place ones too, where their buffer is read through the wait only.

    Before and after:

        a = all_reduce(x, "sum"); b = all_reduce(y, "sum")
        a, b = split(all_reduce(cat([x, y]), "sum"))

    Never: mixes groups, reductions or element types. Sums of floats may be added in another order by the backend;
    `bitwise=True` forbids that.
    """

    name: ClassVar[str] = "bucket-all-reduce"
    contract: ClassVar[Contract] = Contract(provides=frozenset({"bucketed-all-reduce"}))
    kind: ClassVar[Kind] = Kind.ALL_REDUCE


@dataclass(frozen=True, kw_only=True)
class BucketAllToAll(_BucketPass):
    """Merges all-to-alls into few large ones.

    Does: what all members send to a rank travels side by side; what comes back is sorted by member.

    Fires when: two or more exchanges of one group and device do not depend on each other and fit under the cap,
    whatever their split sizes; of one element type, or of any with multi-dtype, where they travel as bytes.

    Before and after:

        a = all_to_all(x); b = all_to_all(y)
        p = cat([x[0], y[0], x[1], y[1], ...]); a, b = sort(all_to_all(p))

    Never: changes a bit of a result, or mixes groups.
    """

    name: ClassVar[str] = "bucket-all-to-all"
    contract: ClassVar[Contract] = Contract(provides=frozenset({"bucketed-all-to-all"}))
    kind: ClassVar[Kind] = Kind.ALL_TO_ALL

    multi_dtype: bool = option(
        False, help="let exchanges of different element types share a bucket, as bytes; not coalesced"
    )

    def rules(self) -> BucketRules:
        """Exchanges only move data, so types may mix."""
        return replace(super().rules(), multi_dtype=self.multi_dtype and self.mode is not BucketMode.COALESCED)
