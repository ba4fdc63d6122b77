"""The pass that fuses gradient reductions. See `gradients` for what is recognised and `ddp_merge` for the rewrite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from counterpoint.ir.ops import Kind
from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.options import option
from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.book import origins_of
from counterpoint.passes.bucket_plan import Bucket, BucketRules, CapsOf, plan_members
from counterpoint.passes.bucket_size import AutoSize
from counterpoint.passes.contract import Contract
from counterpoint.passes.ddp_merge import FusionMethod, fuse
from counterpoint.passes.gradients import Gradient, read_gradients
from counterpoint.passes.rounding import refuse_rounding

MB = 1024 * 1024
USUAL_MB = 25.0
"""The cap where there are no links to fit it to, as DistributedDataParallel has it."""
USUAL_FIRST_MB = 1.0
"""The first cap beside a cap that is given, likewise."""


@dataclass(frozen=True, eq=False)
class FusionBucket:
    """Gradients that share one reduction, in the order in which they become ready. Compared by identity."""

    bucket: Bucket
    gradients: tuple[Gradient, ...]


@dataclass(frozen=True)
class FusionPlan:
    """Which gradients are fused, and why the other reductions are not."""

    buckets: tuple[FusionBucket, ...]
    alone: tuple[tuple[Node, Refusal], ...]
    """Gradients that fill a bucket by themselves, or find no company."""
    refused: tuple[tuple[Node, Refusal], ...]
    """Reductions that cannot be fused, or are not of gradients."""


@dataclass(frozen=True, kw_only=True)
class FuseDdp(Pass):
    """Fuses the all-reduces of gradients into buckets, as DistributedDataParallel does while it runs.

    Does: takes gradients in the order in which they become ready, and gives each bucket one all-reduce, started when
    its last gradient is there. Divisions, multiplications and casts that all members share are done once for the
    bucket, before or after the reduction. Each result goes to the users of the old one; users that stood too early are
    moved.

    Fires when: two or more functional or in-place all-reduces of one group, reduction, device and element type do not
    depend on each other, and no later collective of their group needs them. The size of buckets weighs latency against
    overlap; where a cap is given, a bucket is full once it holds that, and the first of each kind has a cap of its own,
    so that communication begins early.

    Before and after:

        a = wait(all_reduce(x / 8)); b = wait(all_reduce(y / 8))
        a, b = split(wait(all_reduce(cat([x, y]) / 8)))

    With method=coalesced nothing is packed:

        a, b = wait(all_reduce_coalesced(foreach_div([x, y], 8)))

    Never: mixes groups, reductions, devices or element types, moves a read past a write, or scales a gradient by
    another's divisor. Sums of floats may be added in another order by the backend; `bitwise=True` forbids that.
    """

    name: ClassVar[str] = "fuse-ddp"
    contract: ClassVar[Contract] = Contract(provides=frozenset({"fused-gradients"}))

    cap_mb: float | None = option(
        None,
        help="size at which a bucket is full; auto weighs latency against overlap",
        unit="MB",
        minimum=0.0,
        none="auto",
    )
    first_cap_mb: float | None = option(
        None,
        help=f"size at which the first bucket is full; auto as cap-mb, or {USUAL_FIRST_MB:g} where that is given",
        unit="MB",
        minimum=0.0,
        none="auto",
    )
    method: FusionMethod = option(FusionMethod.CONCAT, help="pack into one tensor, or use the coalesced operator")

    def run(self, context: PassContext) -> None:
        """Plan, then fuse bucket by bucket."""
        view = context.editor.view()
        packs = self.method is not FusionMethod.COALESCED
        first_cap = None if self.first_cap_mb is None else int(self.first_cap_mb * MB)
        auto = AutoSize(context, view, packs=packs, first_cap=first_cap).caps if self.cap_mb is None else None
        plan = self.plan(view, auto)
        for start, why in (*plan.refused, *plan.alone):
            context.ledger.left_alone(start, why)
        rounding = {planned: refuse_rounding(context, planned.bucket) for planned in plan.buckets}
        # Asked for before the starts are gone.
        origins = {g.start: origins_of(g.start) for planned in plan.buckets for g in planned.gradients}
        chosen = [planned.gradients for planned, refusal in rounding.items() if refusal is None]
        refused = fuse(context.editor, chosen, self.method, exact=context.options.bitwise)
        for number, (planned, refusal) in enumerate(rounding.items()):
            for start in (gradient.start for gradient in planned.gradients):
                because = refusal or refused.get(start)
                if because is not None:
                    context.ledger.left_alone(origins[start], because)
                else:
                    context.ledger.bucketed(origins[start], f"gradient bucket {number} of {len(planned.gradients)}")

    def plan(self, view: GraphView, caps_of: CapsOf | None = None) -> FusionPlan:
        """What would be fused in this graph. Changes nothing. Without a given cap, `caps_of` chooses one."""
        gradients, refused = read_gradients(view)
        by_start = {gradient.start: gradient for gradient in gradients}
        # What was weighed is a bucket that never holds more than its cap.
        rules = BucketRules(
            kinds=frozenset({Kind.ALL_REDUCE}),
            cap_bytes=self._cap_bytes,
            fill_past_cap=caps_of is None,
            caps_of=caps_of,
        )
        plan = plan_members((gradient.member for gradient in gradients), view.merges(), rules)
        buckets = (FusionBucket(b, tuple(by_start[member.start] for member in b.members)) for b in plan.buckets)
        return FusionPlan(tuple(buckets), plan.refusals, tuple(refused))

    def _cap_bytes(self, index: int) -> int:
        first = USUAL_FIRST_MB if self.first_cap_mb is None else self.first_cap_mb
        rest = USUAL_MB if self.cap_mb is None else self.cap_mb
        return int((first if index == 0 else rest) * MB)
