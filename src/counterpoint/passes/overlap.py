"""The pass that decides buckets and order together. See `counterpoint.schedule` for how."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from counterpoint.cost.model import CostModel
from counterpoint.ir.reason import Refusal
from counterpoint.options import option
from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.book import origins_of
from counterpoint.passes.bucket_merge import BucketMode
from counterpoint.passes.bucket_plan import Bucket, starts_of
from counterpoint.passes.contract import Contract
from counterpoint.passes.overlapping.attempt import Done, Plan, carry_out
from counterpoint.passes.overlapping.buckets import choose_buckets
from counterpoint.passes.overlapping.placing import Placed, as_it_is, with_room
from counterpoint.passes.rounding import refuse_rounding
from counterpoint.schedule.engine import Policy
from counterpoint.schedule.reading import Reading, read_problem

MB = 1024 * 1024
HIDDEN = 0.02
"""A collective counts as hidden if compute waits for no more than this part of it."""

PLAYED_TRANSFERS = 100_000
"""How many transfers may be played in a search, all plays together."""
_EDITS_REFUSED = ("use-before-made", "hazard-order", "graph-form")


@dataclass(frozen=True, kw_only=True)
class ScheduleOverlap(Pass):
    """Decides buckets and order together, so that the network works while the processor does.

    Does: starts collectives early and waits for them late. Gathers are prefetched as far as memory allows, the most
    urgent first; reductions fill what is left of their channel, and drain behind compute. Which collectives share a
    bucket is found by playing the schedule that would follow, within a budget of plays.

    Fires when: the graph has collectives that are waited for, and the step gets shorter by what the costs say.

    Before and after:

        a = wait(all_gather(x)); y = mm(a, u); b = wait(all_gather(z)); v = mm(b, y)
        s = all_gather(x); t = all_gather(z); a = wait(s); y = mm(a, u); b = wait(t); v = mm(b, y)

    Never: changes the order of compute, crosses a barrier, a write or a random draw, lets peak memory grow by more than
    max-extra-mb, or takes an order that the costs find worse than that of the input. Bucketed sums of floats may be
    added in another order by the backend; `bitwise=True` forbids that.
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

    bucket: bool = option(True, help="let collectives share buckets; otherwise only their order changes")
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
    plays: int = option(100, help="how many plans are tried; 1 takes the first without a search", minimum=1)
    caution: float = option(
        1.0, help="how much earlier than at the latest gathers start, in times their length", minimum=0.0
    )

    def run(self, context: PassContext) -> None:
        """Try plans, the boldest first; the first that is shorter and within memory is carried out."""
        model = context.cost_model or CostModel.of(context.options)
        before = read_problem(context.editor.view(), model, context.groups)
        stands = as_it_is(before)
        limit = self._limit(stands)
        reading, refused = with_room(before, limit), dict[str, Refusal]()
        outcome: Done | Refusal = Refusal("no-gain", before.view.nodes[-1].name)
        for policy in self._policies():
            buckets = self._buckets(reading, model, policy)
            buckets, refused = _permitted(context, buckets)
            outcome = carry_out(context, Plan(model, buckets, self.mode, policy, stands, limit))
            # Only what does not fit into memory may fit with less under way.
            if isinstance(outcome, Done) or outcome.code not in ("memory-cap", *_EDITS_REFUSED):
                break
        if isinstance(outcome, Done):
            _tell(context, outcome.reading, outcome.placed, refused, None)
        else:
            _tell(context, before, stands, refused, outcome)

    def _buckets(self, reading: Reading, model: CostModel, policy: Policy) -> tuple[Bucket, ...]:
        if not self.bucket or not policy.room:
            return ()
        # One play takes about as long as there are transfers, so large graphs get fewer of them.
        plays = max(1, min(self.plays, PLAYED_TRANSFERS // max(1, len(reading.starts))))
        return choose_buckets(reading, model, policy, plays)

    def _policies(self) -> Iterator[Policy]:
        """Ever less memory for what is under way; at last none for buckets."""
        for room in (1.0, 0.5, 0.25, 0.0):
            yield Policy(in_flight_bytes=int(self.max_in_flight_mb * MB), room=room, caution=self.caution)

    def _limit(self, stands: Placed) -> int:
        if self.memory_cap_mb is not None:
            return int(self.memory_cap_mb * MB)
        return stands.peak_bytes + int(self.max_extra_mb * MB)


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


def _tell(
    context: PassContext, reading: Reading, placed: Placed, refused: dict[str, Refusal], refusal: Refusal | None
) -> None:
    """One verdict for every collective: what it shares, else behind what it is hidden, else why it is not."""
    behind = _next_steps(reading, placed.order)
    buckets = 0
    for number, transfer in enumerate(reading.problem.transfers):
        start = reading.start(number)
        origins = origins_of(start)
        exposed = placed.played.exposed_us.get(start, 0.0)
        partner = behind.get(start)
        if len(origins) > 1:
            context.ledger.bucketed(origins, f"{transfer.kind.value} bucket {buckets} of {len(origins)}")
            buckets += 1
        elif origins and partner is not None and exposed <= HIDDEN * transfer.network_us:
            context.ledger.hidden(origins, partner.name)
        elif origins:
            why = refused.get(origins[0]) or refusal or _exposed(start, exposed, transfer.network_us)
            context.ledger.left_alone(origins, why, blocking=_first_user(reading, number))


def _next_steps(reading: Reading, order: Sequence[Node]) -> dict[Node, Node]:
    """For each start the compute that follows it."""
    steps = {reading.view.nodes[k] for k in reading.steps if reading.work[k].compute_us > 0}
    starts = {reading.view.nodes[k] for k in reading.starts}
    found: dict[Node, Node] = {}
    step: Node | None = None
    for node in reversed(order):
        step = node if node in steps else step
        if node in starts and step is not None:
            found[node] = step
    return found


def _first_user(reading: Reading, number: int) -> Node | None:
    first = reading.problem.transfers[number].first_use
    return reading.view.nodes[reading.steps[first]] if first < len(reading.steps) else None


def _exposed(start: Node, exposed_us: float, network_us: float) -> Refusal:
    return Refusal("nothing-to-hide-behind", start.name, f"{exposed_us:.0f} of {network_us:.0f} us are exposed")
