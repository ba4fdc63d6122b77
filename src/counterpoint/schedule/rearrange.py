"""Another order of the steps: independent compute beside exchanges that compute would stand waiting for.

Each step is work of the compute stream, each transfer travels on its channel, and is packed and unpacked on the compute
stream. A stream that is free takes the most urgent of what is ready. Done forwards, with the order that stands as
urgency, that draws a later step to where compute would stand waiting. Done backwards from the end, and then forwards
again with what that found, it also puts off what keeps an exchange waiting though nobody needs it yet, such as the
gradient of a weight. This is the forward-backward improvement of project scheduling (Valls, Ballestin and Quintanilla,
"Justification and RCPSP", 2005). The same is done with what the longest chain follows as the most urgent, which keeps
more alive and is better at the end of a step. Where nothing waits, the order stays as it is.

Only the steps that take most of the time change places so; what takes little stays behind the one that it stood behind,
or comes with who needs it. Memory plays no part here: whoever asks holds what is found against its bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from counterpoint.schedule.engine import Schedule
from counterpoint.schedule.problem import Problem

Order = tuple[int, ...]
"""Steps of a problem, each once."""
WORTH = 0.001
"""Less than this part of a step need not be waited for any shorter."""
HEAVY = 0.9
"""The largest steps that together make up this part of compute are those that are worth a place of their own."""


def rearranged(problem: Problem, schedule: Schedule) -> Iterator[Order]:
    """Orders of the steps that may be shorter than the one that the schedule has, the least bold first."""
    needs = problem.step_needs
    if needs is None or sum(schedule.exposed_us) < WORTH * schedule.step_us:
        return
    jobs = _jobs_of(problem, needs)
    as_scheduled = _dispatch(jobs, _as_scheduled(problem, schedule))
    if not as_scheduled.is_whole:
        # Buckets that need each other's steps have no order at all.
        return
    follows_us = _follows(jobs, as_scheduled.sequence)
    critical_first = _dispatch(jobs, [-us for us in follows_us])
    known = {tuple(range(len(needs)))}
    for begun in (as_scheduled, critical_first):
        for found in (begun, _justified(jobs, begun)):
            order = _settled(found, problem)
            if order not in known:
                known.add(order)
                yield order


@dataclass(frozen=True)
class _Jobs:
    """Work of streams: steps, and for each transfer its packing, its travelling and its unpacking."""

    us: list[float]
    stream: list[int]
    sources: list[list[int]]
    targets: list[list[int]]

    def reversed(self) -> _Jobs:
        """The same, seen from the end."""
        return _Jobs(self.us, self.stream, self.targets, self.sources)


class _Dispatched(NamedTuple):
    """When each job began, and the jobs in that order."""

    begins_us: list[float]
    sequence: list[int]

    @property
    def is_whole(self) -> bool:
        """Whether all jobs found their turn."""
        return len(self.sequence) == len(self.begins_us)

    def ends(self, jobs: _Jobs) -> list[float]:
        """When each job was over."""
        return [begin + us for begin, us in zip(self.begins_us, jobs.us, strict=True)]


def _jobs_of(problem: Problem, step_needs: Sequence[Sequence[int]]) -> _Jobs:
    steps = len(problem.steps_us)
    channels = {name: k for k, name in enumerate(dict.fromkeys(t.channel for t in problem.transfers), 1)}
    us, stream = list(problem.steps_us), [0] * steps
    sources = [list(needs) for needs in step_needs]
    for number, transfer in enumerate(problem.transfers):
        pack, travel, unpack = (steps + 3 * number + k for k in range(3))
        us += [transfer.launch_us, transfer.network_us, transfer.land_us]
        stream += [0, channels[transfer.channel], 0]
        sources += [[*transfer.makers, *(steps + 3 * needed + 2 for needed in transfer.needs)], [pack], [travel]]
        for user in transfer.users:
            sources[user].append(unpack)
    targets: list[list[int]] = [[] for _ in us]
    for job, before in enumerate(sources):
        for source in before:
            targets[source].append(job)
    return _Jobs(us, stream, sources, targets)


def _as_scheduled(problem: Problem, schedule: Schedule) -> list[float]:
    """The order that a schedule has, as urgency."""
    steps = len(problem.steps_us)
    urgency = [0.0] * (steps + 3 * len(problem.transfers))
    used: list[list[int]] = [[] for _ in range(steps + 1)]
    for number, transfer in enumerate(problem.transfers):
        used[transfer.first_use].append(number)
    place = 0
    for step in range(steps + 1):
        packs = [steps + 3 * number for number in schedule.launches[step]]
        unpacks = [steps + 3 * number + 2 for number in used[step]]
        for job in (*packs, *unpacks, *((step,) if step < steps else ())):
            urgency[job] = place = place + 1
    for number in range(len(problem.transfers)):
        urgency[steps + 3 * number + 1] = schedule.ends_us[number]
    return urgency


def _justified(jobs: _Jobs, found: _Dispatched) -> _Dispatched:
    """Backwards from the end, what ended last first; and forwards again."""
    backwards = _dispatch(jobs.reversed(), [-end for end in found.ends(jobs)])
    return _dispatch(jobs, [-end for end in backwards.ends(jobs)])


def _follows(jobs: _Jobs, sequence: Sequence[int]) -> list[float]:
    """The longest chain that begins with each job."""
    found = [0.0] * len(jobs.us)
    for job in reversed(sequence):
        found[job] = jobs.us[job] + max((found[target] for target in jobs.targets[job]), default=0.0)
    return found


def _dispatch(jobs: _Jobs, urgency: Sequence[float]) -> _Dispatched:
    """Each stream, whenever it is free, takes the most urgent job that is ready; ties by number."""
    count = len(jobs.us)
    missing = [len(before) for before in jobs.sources]
    streams = max(jobs.stream, default=0) + 1
    ready: list[list[tuple[float, int]]] = [[] for _ in range(streams)]
    busy = [False] * streams
    begins_us, sequence = [0.0] * count, list[int]()
    under_way: list[tuple[float, int]] = []
    for job in range(count):
        if not missing[job]:
            heapq.heappush(ready[jobs.stream[job]], (urgency[job], job))
    now, changed = 0.0, set(range(streams))
    while True:
        for stream in sorted(changed):
            if ready[stream] and not busy[stream]:
                job = heapq.heappop(ready[stream])[1]
                busy[stream], begins_us[job] = True, now
                sequence.append(job)
                heapq.heappush(under_way, (now + jobs.us[job], job))
        if not under_way:
            return _Dispatched(begins_us, sequence)
        changed, now = set(), under_way[0][0]
        while under_way and under_way[0][0] == now:
            job = heapq.heappop(under_way)[1]
            busy[jobs.stream[job]] = False
            changed.add(jobs.stream[job])
            for target in jobs.targets[job]:
                missing[target] -= 1
                if not missing[target]:
                    heapq.heappush(ready[jobs.stream[target]], (urgency[target], target))
                    changed.add(jobs.stream[target])


def _settled(found: _Dispatched, problem: Problem) -> Order:
    """The steps in the order found, but what takes little waits for the heavy step that it stood behind, or for who
    needs it, since it is ready at times long before that, and would hold memory."""
    return problem.in_order(_wanted(found, problem))


def _wanted(found: _Dispatched, problem: Problem) -> Iterator[int]:
    steps = len(problem.steps_us)
    heavy = _heavy(problem.steps_us)
    leader = list(accumulate((step if step in heavy else -1 for step in range(steps)), max))
    led = {-1}
    waiting: dict[int, list[int]] = {}
    for job in found.sequence:
        if job >= steps:
            # What is sent is asked for when its packing has its turn.
            yield from _packed(job, problem)
        elif job in heavy:
            led.add(job)
            yield from (job, *waiting.pop(job, ()))
        elif leader[job] in led:
            yield job
        else:
            waiting.setdefault(leader[job], []).append(job)


def _packed(job: int, problem: Problem) -> Sequence[int]:
    """What the transfer is made of, if the job is the packing of one."""
    number, part = divmod(job - len(problem.steps_us), 3)
    return () if part else problem.transfers[number].makers


def _heavy(steps_us: Sequence[float]) -> frozenset[int]:
    left_us = HEAVY * sum(steps_us)
    found = set()
    for step in sorted(range(len(steps_us)), key=lambda k: (-steps_us[k], k)):
        if left_us <= 0:
            break
        found.add(step)
        left_us -= steps_us[step]
    return frozenset(found)
