"""The pass that runs collectives and matmuls piece by piece. See `micro_pipeline` for what it recognises."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from torch.fx import Node

from counterpoint.ir.reason import Refusal
from counterpoint.options import option
from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.book import origins_of
from counterpoint.passes.contract import Contract
from counterpoint.passes.micro_pipeline.choice import Hiding, Work, choose_chunks, refuse_small
from counterpoint.passes.micro_pipeline.estimates import Estimates
from counterpoint.passes.micro_pipeline.exchanges import ExchangePlan
from counterpoint.passes.micro_pipeline.plans import Planned, partner_of, plan_graph, with_chunks
from counterpoint.passes.micro_pipeline.rewrite import GatherPlan, Plan, carry_out


class When(Enum):
    """Which matches are carried out."""

    PAYS = "pays"
    """Those that are estimated to be faster."""
    ALWAYS = "always"
    """All of them."""


@dataclass(frozen=True, kw_only=True)
class MicroPipelineTp(Pass):
    """Runs a matmul piece by piece while its collective's pieces travel.

    Does: an all-gather and the matmuls of the gathered tensor become one operator, which multiplies each rank's part as
    it arrives; a matmul, or a sum of matmuls, and the reduce-scatter or all-reduce behind it become one that sends each
    part as it is computed. Casts and elementwise operators by constants between a gather and its matmuls are done
    before the gather.

    Fires when: the gather is along any dim (direct, split or slices and cat, a view, as bytes), the matmuls are mm,
    addmm or linear with a bias, bmm, or scaled ones, with the gathered tensor as left or right operand, seen through
    reshapes and transposes. Reductions are sum or avg of products that nothing else uses, turned ones too. With
    when=pays also the estimate must say that it is faster, and, with leave-hidden, that independent compute nearby does
    not hide the collective anyway. A matmul between a gather and a reduce-scatter goes with one of them. An all-to-all
    of equal parts goes with the matmuls of the rows that it brings, or else with the one that computes what it sends.

    Before and after:

        g = cat(split(wait(all_gather(x)), 1), 1); a = mm(g.view(-1, k), w1); b = mm(g.view(-1, k), w2)
        a, b = all_gather_matmul(x, [w1, w2], dim 1)

        r = wait(reduce_scatter(cat(split(mm(y, w), 1, 1)), "sum"))
        r = matmul_reduce_scatter([y], [w], "sum", dim 1)

    Never: takes pieces that are permuted, missing or of unequal size, writes the rank or a size that was symbolic into
    the graph, moves a read past a write, or lets a gathered tensor that is used otherwise get lost. Matmuls in pieces
    may round otherwise and sums be added in another order; `bitwise=True` forbids that. It stands before bucketing and
    gradient fusion, which put what it leaves together, so that a collective is never both.
    """

    name: ClassVar[str] = "micro-pipeline-tp"
    contract: ClassVar[Contract] = Contract(
        provides=frozenset({"micro-pipelined"}),
        conflicts_with=frozenset(
            {"bucketed-all-gather", "bucketed-reduce-scatter", "bucketed-all-reduce", "fused-gradients"}
        ),
    )

    when: When = option(When.PAYS, help="carry out what is estimated to pay, or every match")
    leave_hidden: bool = option(True, help="leave collectives that independent compute hides; not with when=always")
    chunks: int | None = option(
        None, help="pieces that each rank's part is cut into; auto weighs calls against overlap", minimum=1, none="auto"
    )

    def run(self, context: PassContext) -> None:
        """Plan, choose, rewrite, tell."""
        view = context.editor.view()
        planned = plan_graph(view)
        if context.options.bitwise:
            _refuse_all(planned, "a matmul in pieces may round otherwise")
        estimates = Estimates.of(context)
        plans = self._chosen(planned, estimates, Hiding(view, estimates.compute_us))
        # Asked for before the starts are gone.
        origins = {plan: _own_origins(plan) for plan in plans}
        partners = {plan: partner_of(plan) for plan in plans}
        for plan, refusal in zip(plans, carry_out(context.editor, plans), strict=True):
            if refusal is None:
                context.ledger.pipelined(origins[plan], partners[plan])
            else:
                context.ledger.left_alone(origins[plan], refusal)
        for start, why in planned.refused.items():
            context.ledger.left_alone(start, why)

    def _chosen(self, planned: Planned, estimates: Estimates, hiding: Hiding) -> list[Plan]:
        chosen: list[Plan] = []
        known: dict[Work, tuple[int, float]] = {}
        for plan in planned.plans:
            work = estimates.work(plan)
            # The layers of a model repeat each other.
            chunks, gain_us = known[work] if work in known else known.setdefault(work, choose_chunks(work))
            refusal = None
            if self.when is When.PAYS:
                refusal = refuse_small(plan.starts[0], work, gain_us)
                if refusal is None and self.leave_hidden:
                    refusal = hiding.refuse(plan.starts[0], wait_of(plan), work.communication_us)
            if refusal is None:
                chosen.append(with_chunks(plan, self.chunks or chunks))
            else:
                planned.refused.update(dict.fromkeys(plan.starts, refusal))
        return chosen


def wait_of(plan: Plan) -> Node:
    """The wait of a plan's collective."""
    if isinstance(plan, ExchangePlan):
        return plan.wait
    return plan.gather.wait if isinstance(plan, GatherPlan) else plan.scatter.wait


def _refuse_all(planned: Planned, why: str) -> None:
    for plan in planned.plans:
        planned.refused.update((start, Refusal("rounding", start.name, why)) for start in plan.starts)
    planned.plans.clear()


def _own_origins(plan: Plan) -> list[str]:
    return [origin for start in plan.starts for origin in origins_of(start)]
