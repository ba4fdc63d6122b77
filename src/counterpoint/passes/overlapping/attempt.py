"""One plan, carried out as one transaction: buckets and order stand together, or the graph is as it was."""

from __future__ import annotations

from dataclasses import dataclass, field

from counterpoint.cost.model import CostModel
from counterpoint.ir.edit import Transaction
from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.passes.base import PassContext
from counterpoint.passes.bucket_merge import BucketMode, merge_in
from counterpoint.passes.bucket_plan import Bucket
from counterpoint.passes.overlapping.buckets import Choice
from counterpoint.passes.overlapping.placing import (
    Placed,
    alive_in,
    as_it_is,
    choose_order,
    place,
    put_in_order,
    with_room,
)
from counterpoint.passes.overlapping.replay import Names, planned_schedule, planned_steps
from counterpoint.passes.overlapping.written import WrittenPlan
from counterpoint.schedule.engine import Policy
from counterpoint.schedule.reading import Reading, read_problem
from counterpoint.schedule.search import GAIN


@dataclass(frozen=True)
class Plan:
    """What is to be done."""

    model: CostModel
    choice: Choice
    mode: BucketMode
    policy: Policy
    stands: Placed
    """The input's order, which must be beaten."""
    limit_bytes: int
    before: Reading
    """The graph as it is; where nothing is merged it need not be read again."""
    pinned: WrittenPlan | None = None
    """An order that is given, and not chosen by what it is expected to take."""
    names: Names = field(default_factory=lambda: Names({}))
    """What collectives are called in it."""


@dataclass(frozen=True)
class Done:
    """What was done: the graph before it was put in order, and the order."""

    buckets: tuple[Bucket, ...]
    mode: BucketMode
    reading: Reading
    placed: Placed


def carry_out(context: PassContext, plan: Plan) -> Done | Refusal:
    """Merge, order, and commit if that is shorter and within memory; else why it is not."""
    done: list[Done] = []

    def rewrite(tx: Transaction) -> None:
        if plan.choice.buckets:
            merge_in(tx, plan.choice.buckets, plan.mode)
        read = plan.before
        if plan.choice.buckets:
            read = read_problem(GraphView.of(context.graph), plan.model, context.groups)
        found = _placed(plan, with_room(read, plan.limit_bytes))
        if isinstance(found, Refusal):
            tx.refuse(found)
        reading, placed = found
        why = _refuse(plan, placed, reading.view.nodes[-1].name)
        if why is not None:
            tx.refuse(why)
        put_in_order(tx, reading, placed.order)
        # What the graph holds now is what counts: the plan's figure rests on the reading from before it was ordered.
        made = GraphView.of(context.graph)
        peak = max(alive_in(made, made.nodes), default=0)
        why = _refuse_memory(plan, peak, made.nodes[-1].name)
        if why is not None:
            tx.refuse(why)
        done.append(Done(plan.choice.buckets, plan.mode, reading, placed))

    refusal = context.editor.attempt("schedule collectives", rewrite)
    return done[0] if refusal is None else refusal


def _refuse_memory(plan: Plan, peak_bytes: int, where: str) -> Refusal | None:
    if peak_bytes > max(plan.limit_bytes, plan.stands.peak_bytes):
        return Refusal("memory-cap", where, f"{peak_bytes} bytes, {plan.limit_bytes} are allowed")
    return None


def _placed(plan: Plan, reading: Reading) -> tuple[Reading, Placed] | Refusal:
    """The order, and the reading with its steps in that order."""
    if plan.pinned is None:
        return choose_order(reading, plan.policy, plan.limit_bytes, plan.choice.steps)
    moved = planned_steps(plan.pinned, reading)
    if isinstance(moved, Refusal):
        return moved
    schedule = planned_schedule(plan.pinned, plan.names, moved)
    if isinstance(schedule, Refusal):
        return schedule
    return moved, as_it_is(moved) if schedule is None else place(moved, schedule)


def _refuse(plan: Plan, placed: Placed, where: str) -> Refusal | None:
    too_large = _refuse_memory(plan, placed.peak_bytes, where)
    if too_large is not None or plan.pinned is not None:
        return too_large
    before, after = plan.stands.played.step_us, placed.played.step_us
    if after > before * (1 - GAIN):
        return Refusal("no-gain", where, f"{before:.0f} us as it is, {after:.0f} us planned")
    return None
