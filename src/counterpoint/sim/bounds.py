"""What no order of the same work can beat.

Three things take their time whatever the order: the compute stream its work, each channel its collectives, and every
chain in which each needs the one before. The work of a stream can neither begin before what its first piece needs is
there, nor be followed by less than its last piece entails. The best that is known of that kind at once for all choices
of first and last pieces is Jackson's preemptive schedule (Carlier, 1982): run, of what is ready, what has most to
follow, and let it be interrupted. Its length is the largest bound over all subsets of the work, in n log n steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch.fx import Node

from counterpoint.schedule.work import Work
from counterpoint.sim.timeline import Bounds


class Job(NamedTuple):
    """A piece of work of one stream."""

    head_us: float
    """Before which it cannot begin."""
    us: float
    tail_us: float
    """What must still follow it."""


class _Arc(NamedTuple):
    """Something that must come before something else."""

    before: int
    network: bool
    """Whether what lies between is the collective that the first starts and the second waits for."""


def bounds_of(work: Sequence[Work], edges: Mapping[Node, tuple[Node, ...]]) -> Bounds:
    """Lower bounds of a graph's work. `edges`: for each node the earlier ones that must come before it, operands left
    out."""
    arcs = _arcs(work, edges)
    heads = _heads(work, arcs)
    tails, behind = _tails(work, arcs)
    compute = [Job(head, item.compute_us, tail) for item, head, tail in zip(work, heads, tails, strict=True)]
    channels: dict[str, list[Job]] = {}
    for item, head, tail in zip(work, heads, behind, strict=True):
        if item.channel is not None:
            channels.setdefault(item.channel, []).append(Job(head + item.compute_us, item.network_us, tail))
    return Bounds(
        compute_us=one_stream_us([job for job in compute if job.us > 0]),
        channels_us={channel: one_stream_us(jobs) for channel, jobs in channels.items()},
        critical_path_us=max((sum(job) for job in compute), default=0.0),
    )


def one_stream_us(jobs: Sequence[Job]) -> float:
    """The shortest time in which one stream can do these jobs, were it free to interrupt them."""
    waiting = sorted(range(len(jobs)), key=lambda k: jobs[k].head_us)
    ready: list[tuple[float, int]] = []
    left = [job.us for job in jobs]
    now = longest = 0.0
    at = 0
    while at < len(waiting) or ready:
        if not ready:
            now = max(now, jobs[waiting[at]].head_us)
        while at < len(waiting) and jobs[waiting[at]].head_us <= now:
            heapq.heappush(ready, (-jobs[waiting[at]].tail_us, waiting[at]))
            at += 1
        tail, job = ready[0]
        until = jobs[waiting[at]].head_us if at < len(waiting) else float("inf")
        if now + left[job] > until:
            left[job] -= until - now
            now = until
            continue
        heapq.heappop(ready)
        now += left[job]
        longest = max(longest, now - tail)
    return longest


def _arcs(work: Sequence[Work], edges: Mapping[Node, tuple[Node, ...]]) -> list[list[_Arc]]:
    index = {item.node: k for k, item in enumerate(work)}
    found = []
    for item in work:
        sources = (*item.node.all_input_nodes, *edges.get(item.node, ()))
        arcs = [_Arc(index[source], False) for source in sources]
        if item.waits_for is not None:
            arcs.append(_Arc(index[item.waits_for], True))
        found.append(arcs)
    return found


def _heads(work: Sequence[Work], arcs: Sequence[Sequence[_Arc]]) -> list[float]:
    """For each node the earliest moment at which it can run, were there a stream for everything."""
    heads: list[float] = []
    for before in arcs:
        ends = (
            heads[arc.before] + work[arc.before].compute_us + (work[arc.before].network_us if arc.network else 0.0)
            for arc in before
        )
        heads.append(max(ends, default=0.0))
    return heads


def _tails(work: Sequence[Work], arcs: Sequence[Sequence[_Arc]]) -> tuple[list[float], list[float]]:
    """For each node the least that follows it; and the least that follows the collective that it starts."""
    behind = [0.0] * len(work)
    tails = [item.network_us for item in work]
    for k in range(len(work) - 1, -1, -1):
        follows = work[k].compute_us + tails[k]
        for arc in arcs[k]:
            if arc.network:
                behind[arc.before] = max(behind[arc.before], follows)
                follows_start = work[arc.before].network_us + follows
                tails[arc.before] = max(tails[arc.before], follows_start)
            else:
                tails[arc.before] = max(tails[arc.before], follows)
    return tails, behind
