"""What no order of the same work can beat.

Three things take their time whatever the order: the compute stream its work, each channel its collectives, and every
chain in which each needs the one before. The work of a stream can neither begin before what its first piece needs is
there, nor be followed by less than its last piece entails. The best that is known of that kind at once for all choices
of first and last pieces is Jackson's preemptive schedule (Carlier, 1982): run, of what is ready, what has most to
follow, and let it be interrupted. Its length is the largest bound over all subsets of the work, in n log n steps.

A chain of exchanges takes longer than its longest path: what needs one exchange and is needed for the next must all run
between the two, on one stream. `_Region` counts that.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch.fx import Node

from counterpoint.schedule.work import Work
from counterpoint.sim.timeline import Bounds

SEEN = 256
"""How many nodes of a region are looked at for one collective; some of them make a bound as well."""


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
    network_us: float | None = None
    """What the collective takes that the first starts and the second waits for, if that is what lies between."""


def bounds_of(work: Sequence[Work], edges: Mapping[Node, tuple[Node, ...]]) -> Bounds:
    """Lower bounds of a graph's work. `edges`: for each node the earlier ones that must come before it, operands left
    out."""
    us = [item.compute_us for item in work]
    arcs = _arcs(work, edges)
    heads = _Region(arcs, us).heads(range(len(work)))
    backwards = _reversed(arcs)
    # A collective that nobody waits for is over after the node that starts it.
    least = [
        0.0 if any(arc.network_us is not None for arc in backwards[k]) else work[k].network_us for k in range(len(us))
    ]
    tails = _Region(backwards, us, least).heads(range(len(work) - 1, -1, -1))
    behind = [
        max((us[arc.before] + tails[arc.before] for arc in after if arc.network_us is not None), default=0.0)
        for after in backwards
    ]
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
        arcs = [_Arc(index[source]) for source in (*item.node.all_input_nodes, *edges.get(item.node, ()))]
        if item.waits_for is not None:
            started = index[item.waits_for]
            arcs.append(_Arc(started, work[started].network_us))
        found.append(arcs)
    return found


def _reversed(arcs: Sequence[Sequence[_Arc]]) -> list[list[_Arc]]:
    found: list[list[_Arc]] = [[] for _ in arcs]
    for k, before in enumerate(arcs):
        for arc in before:
            found[arc.before].append(_Arc(k, arc.network_us))
    return found


class _Region:
    """The earliest moment of each node, and which of the collectives before it ends last: its gate. Nodes with one gate
    are a region. What a collective needs of the region that it stands in runs before it and after the gate."""

    def __init__(self, arcs: Sequence[Sequence[_Arc]], us: Sequence[float], least: Sequence[float] = ()) -> None:
        self.arcs, self.us = arcs, us
        self.head = list(least) or [0.0] * len(us)
        self.gate = [-1] * len(us)
        self.gate_us = [0.0] * len(us)
        self.closes = {arc.before for before in arcs for arc in before if arc.network_us is not None}

    def heads(self, order: Sequence[int]) -> list[float]:
        """For each node the earliest moment at which it can run; `order` has sources first."""
        for k in order:
            for before, network_us in self.arcs[k]:
                end_us = self.head[before] + self.us[before] + (network_us or 0.0)
                self.head[k] = max(self.head[k], end_us)
                gate, gate_us = (self.gate[before], self.gate_us[before]) if network_us is None else (before, end_us)
                if gate_us > self.gate_us[k]:
                    self.gate[k], self.gate_us[k] = gate, gate_us
            if self.gate[k] >= 0 and (k in self.closes or k == order[-1]):
                self.head[k] = max(self.head[k], self.gate_us[k] + self._between_us(k))
        return self.head

    def _between_us(self, k: int) -> float:
        """What the node needs that its gate must come before; a part of it where that is much."""
        seen, pending, total_us = {k}, [k], 0.0
        while pending and len(seen) < SEEN:
            for before, network_us in self.arcs[pending.pop()]:
                if network_us is None and before not in seen and self.gate[before] == self.gate[k]:
                    seen.add(before)
                    pending.append(before)
                    total_us += self.us[before]
        return total_us
