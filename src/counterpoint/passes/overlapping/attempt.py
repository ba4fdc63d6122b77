"""One plan, carried out as one transaction: buckets and order stand together, or the graph is as it was."""

from __future__ import annotations

from dataclasses import dataclass

from counterpoint.cost.model import CostModel
from counterpoint.ir.edit import Transaction
from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.passes.base import PassContext
from counterpoint.passes.bucket_merge import BucketMode, merge_in
from counterpoint.passes.bucket_plan import Bucket
from counterpoint.passes.overlapping.placing import Placed, choose_order, put_in_order, with_room
from counterpoint.schedule.engine import Policy
from counterpoint.schedule.reading import Reading, read_problem

GAIN = 0.001
"""A plan must shorten the step by this part; less is within what costs are wrong by."""


@dataclass(frozen=True)
class Plan:
    """What is to be done."""

    model: CostModel
    buckets: tuple[Bucket, ...]
    mode: BucketMode
    policy: Policy
    stands: Placed
    """The input's order, which must be beaten."""
    limit_bytes: int


@dataclass(frozen=True)
class Done:
    """What was done: the graph before it was put in order, and the order."""

    reading: Reading
    placed: Placed


def carry_out(context: PassContext, plan: Plan) -> Done | Refusal:
    """Merge, order, and commit if that is shorter and within memory; else why it is not."""
    done: list[Done] = []

    def rewrite(tx: Transaction) -> None:
        if plan.buckets:
            merge_in(tx, plan.buckets, plan.mode)
        view = GraphView.of(context.graph)
        reading = with_room(read_problem(view, plan.model, context.groups), plan.limit_bytes)
        placed = choose_order(reading, plan.policy, plan.limit_bytes)
        why = _refuse(plan, placed, view.nodes[-1].name)
        if why is not None:
            tx.refuse(why)
        put_in_order(tx, reading, placed.order)
        done.append(Done(reading, placed))

    refusal = context.editor.attempt("schedule collectives", rewrite)
    return done[0] if refusal is None else refusal


def _refuse(plan: Plan, placed: Placed, where: str) -> Refusal | None:
    if placed.peak_bytes > max(plan.limit_bytes, plan.stands.peak_bytes):
        return Refusal("memory-cap", where, f"{placed.peak_bytes} bytes, {plan.limit_bytes} are allowed")
    before, after = plan.stands.played.step_us, placed.played.step_us
    if after > before * (1 - GAIN):
        return Refusal("no-gain", where, f"{before:.0f} us as it is, {after:.0f} us planned")
    return None
