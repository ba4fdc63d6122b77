"""What an order of nodes takes: one compute stream, a channel for each group. The short form of the simulator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch.fx import Node

from counterpoint.schedule.work import Work


class Played(NamedTuple):
    """What an order takes."""

    step_us: float
    exposed_us: dict[Node, float]
    """How long compute stands waiting for each start that it waits for at all."""


def play(work: Iterable[Work]) -> Played:
    """Run these nodes in this order."""
    now = 0.0
    free: dict[str, float] = {}
    ends: dict[Node, float] = {}
    exposed: dict[Node, float] = {}
    for item in work:
        if item.waits_for is not None:
            stalled = max(0.0, ends.get(item.waits_for, 0.0) - now)
            exposed[item.waits_for] = exposed.get(item.waits_for, 0.0) + stalled
            now += stalled
        now += item.compute_us
        if item.channel is not None:
            ends[item.node] = free[item.channel] = max(free.get(item.channel, 0.0), now) + item.network_us
    return Played(max([now, *free.values()]), exposed)
