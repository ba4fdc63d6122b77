"""What the ledger is told: for every collective the bucket, what hides it, or why it is exposed."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from counterpoint.ir.reason import Refusal
from counterpoint.passes.base import PassContext
from counterpoint.passes.book import origins_of
from counterpoint.passes.overlapping.placing import Placed
from counterpoint.schedule.reading import Reading

HIDDEN = 0.02
"""A collective counts as hidden if compute waits for no more than this part of it."""


def tell(
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
