"""The pass that decides buckets and order together. See `counterpoint.schedule` for how."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from counterpoint.cost.model import CostModel
from counterpoint.ir.reason import Refusal
from counterpoint.options import option
from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.book import origins_of
from counterpoint.passes.bucket_merge import BucketMode
from counterpoint.passes.bucket_plan import Bucket, starts_of
from counterpoint.passes.contract import Contract
from counterpoint.passes.overlapping.attempt import Done, Plan, carry_out
from counterpoint.passes.overlapping.buckets import Choice, choose
from counterpoint.passes.overlapping.placing import Placed, as_it_is, place, with_room
from counterpoint.passes.overlapping.replay import Names, head_of, planned_buckets, written
from counterpoint.passes.overlapping.verdicts import tell
from counterpoint.passes.overlapping.written import WrittenPlan, plan_text, read_plans
from counterpoint.passes.rounding import refuse_rounding
from counterpoint.schedule.engine import Policy, run
from counterpoint.schedule.reading import Reading, read_problem
from counterpoint.schedule.search import GAIN

LOGGER = logging.getLogger("counterpoint")
MB = 1024 * 1024
PLAYED_TRANSFERS = 100_000
"""How many transfers may be played in a search, all plays together."""
_EDITS_REFUSED = ("use-before-made", "hazard-order", "graph-form")


@dataclass(frozen=True, kw_only=True)
class ScheduleOverlap(Pass):
    """Decides buckets and order together, so that the network works while the processor does.

    Does: starts collectives early and waits for them late. Gathers are prefetched as far as memory allows, the most
    urgent first; reductions fill what is left of their channel, and drain behind compute. Where compute would stand
    waiting for an exchange, other compute that does not need it is put beside it, such as gradients of weights. Which
    collectives share a bucket is found by playing the schedule that would follow, within a budget of plays: a budget
    in seconds would let ranks decide differently. What is decided stands in the report as text; a file of it, given as
    `plan`, is carried out again without a search.

    Fires when: the graph has collectives that are waited for, and the step gets shorter by what the costs say.

    Before and after:

        a = wait(all_gather(x)); y = mm(a, u); b = wait(all_gather(z)); v = mm(b, y)
        s = all_gather(x); t = all_gather(z); a = wait(s); y = mm(a, u); b = wait(t); v = mm(b, y)

    Never: crosses a barrier, changes the order of writes, of random draws, or of compute where nothing gains by it,
    lets peak memory grow by more than max-extra-mb, or takes an order that the costs find worse than that of the input.
    A given plan that does not fit the graph or the memory is left aside with a note, and the pass decides anew.
    Bucketed sums of floats may be added in another order by the backend; `bitwise=True` forbids that.
    """

    name: ClassVar[str] = "schedule-overlap"
    contract: ClassVar[Contract] = Contract(
        provides=frozenset(
            {
                "overlap-schedule",
                "delayed-waits",
                "bucketed-all-gather",
                "bucketed-reduce-scatter",
                "bucketed-all-reduce",
                "bucketed-all-to-all",
            }
        )
    )

    bucket: bool = option(True, help="let collectives share buckets; otherwise only the order changes")
    move_compute: bool = option(
        True,
        help="let compute that does not need it run before an exchange is waited for; else compute keeps its order",
    )
    mode: BucketMode = option(BucketMode.FUNCTIONAL, help="how members of a bucket share one collective")
    max_in_flight_mb: float = option(
        2048.0, help="what collectives under way may hold beyond what compute needs", unit="MB", minimum=0.0
    )
    max_extra_mb: float = option(
        1024.0, help="how much the peak of memory may grow over that of the input", unit="MB", minimum=0.0
    )
    memory_cap_mb: float | None = option(
        None, help="peak of memory that is allowed, instead of max-extra-mb", unit="MB", minimum=0.0
    )
    plays: int = option(
        100, help="how many plans are tried, the budget of the search; 1 takes the first without one", minimum=1
    )
    caution: float = option(
        1.0, help="how much earlier than at the latest gathers start, in times their length", minimum=0.0
    )

    plan: str | None = option(None, help="a file of plans to carry out again instead of searching")

    def given(self) -> str:
        """The plans of the file, checked."""
        if self.plan is None:
            return ""
        read_plans(self.plan)
        return plan_text(self.plan)

    def run(self, context: PassContext) -> None:
        """Carry out the plan that is given for this graph, or else the best one that is found."""
        model = context.cost_model or CostModel.of(context.options)
        before = read_problem(context.editor.view(), model, context.groups)
        task = _Task(
            context, model, before, as_it_is(before), Names.of(before.start(n) for n in range(len(before.starts)))
        )
        head = head_of(context.graph, context.name, self.mode)
        done = self._replayed(task, head)
        refused, outcome = ({}, done) if done is not None else self._searched(task)
        if isinstance(outcome, Done):
            context.ledger.plans.append(_text_of(outcome, task, head))
            tell(context, outcome.reading, outcome.placed, refused, None)
        else:
            tell(context, before, task.stands, refused, outcome)

    def _replayed(self, task: _Task, head: WrittenPlan) -> Done | None:
        """What the given plan leads to; None, and a note, where there is none or it does not fit."""
        if self.plan is None:
            return None
        pinned = read_plans(self.plan).get(head.identity)
        outcome: Done | Refusal = Refusal(
            "plan-changed", task.context.name, f"{self.plan} has no plan for {head.identity}"
        )
        if pinned is not None:
            starts = [task.before.start(number) for number in range(len(task.before.starts))]
            buckets = planned_buckets(pinned, starts)
            outcome = buckets if isinstance(buckets, Refusal) else self._carried_out(task, pinned, buckets)
        if isinstance(outcome, Done):
            return outcome
        note = f"the given plan was not carried out, and another was made: {outcome}"
        LOGGER.warning("%s: %s", self.text, note)
        task.context.ledger.notes.append(note)
        return None

    def _carried_out(self, task: _Task, pinned: WrittenPlan, buckets: tuple[Bucket, ...]) -> Done | Refusal:
        _, refused = _permitted(task.context, buckets)
        if refused:
            return next(iter(refused.values()))
        limit, policy = self._limit(task.stands), next(self._policies())
        plan = Plan(
            task.model, Choice(buckets), pinned.mode, policy, task.stands, limit, task.before, pinned, task.names
        )
        return carry_out(task.context, plan)

    def _searched(self, task: _Task) -> tuple[dict[str, Refusal], Done | Refusal]:
        """Try plans, the boldest first; the first that is shorter and within memory is carried out."""
        context, model = task.context, task.model
        limit = self._limit(task.stands)
        reading, refused = with_room(task.before, limit), dict[str, Refusal]()
        outcome: Done | Refusal = Refusal("no-gain", task.before.view.nodes[-1].name)
        for policy in self._policies():
            choice = self._choice(reading, model, policy)
            buckets, refused = _permitted(context, choice.buckets)
            choice = Choice(buckets, choice.steps)
            outcome = carry_out(context, Plan(model, choice, self.mode, policy, task.stands, limit, task.before))
            # Only what does not fit into memory may fit with less under way.
            if isinstance(outcome, Done) or outcome.code not in ("memory-cap", *_EDITS_REFUSED):
                break
        if isinstance(outcome, Refusal) and outcome.code == "no-gain":
            outcome = _for_want_of_memory(task, limit) or outcome
        return refused, outcome

    def _choice(self, reading: Reading, model: CostModel, policy: Policy) -> Choice:
        if not self.bucket or not policy.room:
            return Choice()
        # One play takes about as long as there are transfers, so large graphs get fewer of them.
        plays = max(1, min(self.plays, PLAYED_TRANSFERS // max(1, len(reading.starts))))
        return choose(reading, model, policy, plays)

    def _policies(self) -> Iterator[Policy]:
        """Ever less memory for what is under way; at last none for buckets."""
        for room in (1.0, 0.5, 0.25, 0.0):
            yield Policy(
                in_flight_bytes=int(self.max_in_flight_mb * MB),
                room=room,
                moves_compute=self.move_compute,
                caution=self.caution,
            )

    def _limit(self, stands: Placed) -> int:
        if self.memory_cap_mb is not None:
            return int(self.memory_cap_mb * MB)
        return stands.peak_bytes + int(self.max_extra_mb * MB)


@dataclass(frozen=True)
class _Task:
    """What a run of the pass begins with."""

    context: PassContext
    model: CostModel
    before: Reading
    stands: Placed
    names: Names


def _for_want_of_memory(task: _Task, limit_bytes: int) -> Refusal | None:
    """The refusal, if it is the bound on memory that leaves no order shorter than the one that stands."""
    if task.stands.peak_bytes + sum(transfer.held_bytes for transfer in task.before.problem.transfers) <= limit_bytes:
        return None
    free = run(replace(task.before.problem, room=None), Policy(in_flight_bytes=sys.maxsize))
    placed, stands = place(task.before, free), task.stands
    if placed.played.step_us > stands.played.step_us * (1 - GAIN) or placed.peak_bytes <= stands.peak_bytes:
        return None
    what = f"{placed.peak_bytes} bytes would make it {placed.played.step_us:.0f} us from {stands.played.step_us:.0f}"
    return Refusal("memory-cap", task.before.view.nodes[-1].name, what)


def _text_of(done: Done, task: _Task, head: WrittenPlan) -> str:
    before_us, after_us = task.stands.played.step_us, done.placed.played.step_us
    remark = f"{before_us:.0f} us as it was, {after_us:.0f} us planned, peak {done.placed.peak_bytes} bytes"
    head = replace(head, mode=done.mode, remark=remark)
    return written(head, task.names, done.buckets, done.reading, done.placed.schedule).text


def _permitted(context: PassContext, buckets: Iterable[Bucket]) -> tuple[tuple[Bucket, ...], dict[str, Refusal]]:
    """The buckets that the options permit; and by origin why others are not."""
    rounding = {bucket: refuse_rounding(context, bucket) for bucket in buckets}
    refused = {
        origin: why
        for bucket, why in rounding.items()
        for start in starts_of(bucket.members)
        for origin in origins_of(start)
        if why is not None
    }
    return tuple(bucket for bucket, why in rounding.items() if why is None), refused
