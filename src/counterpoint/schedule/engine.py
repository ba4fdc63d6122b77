"""The scheduler: plays the steps one after the other, and before each decides which transfers start and end.

A channel never stands idle while something useful can travel on it. Among what can, `keys.urgency` decides. A gather
costs memory from its start to its last use, so it is prefetched only within a bound; what is sent by a reduction is
held until it is waited for, so reductions that are over are waited for before their first use where that frees memory.

Nothing here knows a graph, and nothing is searched: one walk over the steps, with heaps of what is ready.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from counterpoint.schedule import keys
from counterpoint.schedule.problem import Problem, Transfer


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the scheduler may do."""

    in_flight_bytes: int
    """What may be held by transfers that started early or have not been waited for."""
    room: float = 1.0
    """The part of the room for memory that may be used."""
    moves_compute: bool = True
    """Whether steps may change places."""
    caution: float = 1.0
    """Reductions are waited for early only when they have been over for this many times their length, and gathers
    start that much earlier than they must. Estimates are wrong at times; this is what an error may cost nothing."""


@dataclass(frozen=True)
class Schedule:
    """Which transfers start and end before each step, and what that is expected to take."""

    launches: tuple[tuple[int, ...], ...]
    """For each step, and for the end, the transfers that start before it, in order."""
    landings: tuple[tuple[int, ...], ...]
    """For each step, and for the end, the transfers that are waited for before it though it does not need them."""
    ends_us: tuple[float, ...]
    """When each transfer is expected to be over."""
    exposed_us: tuple[float, ...]
    """How long the compute stream is expected to stand waiting for each."""
    step_us: float


def run(problem: Problem, policy: Policy) -> Schedule:
    """The schedule of a problem."""
    return _Run(problem, policy).all()


@dataclass
class _Channel:
    """What waits for one channel."""

    free_us: float = 0.0
    gathers: list[tuple[float, int]] = field(default_factory=list)
    others: list[tuple[float, int]] = field(default_factory=list)


class _Run:
    """The state of one walk."""

    def __init__(self, problem: Problem, policy: Policy) -> None:
        self.steps_us, self.transfers, self.policy = problem.steps_us, problem.transfers, policy
        self.room = problem.room
        count, end = len(problem.transfers), len(problem.steps_us) + 1
        self.latest_us = keys.latest_starts(problem)
        self.reserve_us = keys.reserves(problem, policy.caution)
        self.channels: dict[str, _Channel] = {transfer.channel: _Channel() for transfer in problem.transfers}
        self.by_after = _by_step([transfer.after for transfer in self.transfers], end)
        self.by_use = _by_step([transfer.first_use for transfer in self.transfers], end)
        self.missing = [len(transfer.needs) for transfer in self.transfers]
        self.dependents: list[list[int]] = [[] for _ in range(count)]
        for number, transfer in enumerate(self.transfers):
            for needed in transfer.needs:
                self.dependents[needed].append(number)
        self.launched, self.landed = [False] * count, [False] * count
        self.ends_us, self.exposed_us = [0.0] * count, [0.0] * count
        self.now_us = 0.0
        self.held_bytes = 0
        self.step = 0
        self.open_for = [False] * count
        """Whether enough steps have run."""
        self.under_way: list[tuple[float, int]] = []
        """Transfers that others need or that hold memory, by when they are over."""
        self.launches: list[list[int]] = [[] for _ in range(end)]
        self.landings: list[list[int]] = [[] for _ in range(end)]

    def all(self) -> Schedule:
        """Walk over the steps."""
        for step, us in enumerate((*self.steps_us, 0.0)):
            self.step = step
            for number in self.by_after[step]:
                self.open_for[number] = True
                self._offer(number)
            self._land_what_is_over()
            for number in self.by_use[step]:
                self._launch_with_needs(number)
            self._keep_busy(us if step < len(self.steps_us) else float("inf"))
            for number in sorted(self.by_use[step], key=lambda n: (self.ends_us[n], n)):
                self._land(number)
                self.now_us += self.transfers[number].land_us
            self.now_us += us
        step_us = max([self.now_us, *(channel.free_us for channel in self.channels.values())])
        return Schedule(
            tuple(map(tuple, self.launches)),
            tuple(map(tuple, self.landings)),
            tuple(self.ends_us),
            tuple(self.exposed_us),
            step_us,
        )

    # -- starting --------------------------------------------------------------------------------------------------

    def _offer(self, number: int) -> None:
        """Let the transfer compete for its channel, if nothing is missing any more."""
        if self.launched[number] or not self.open_for[number] or self.missing[number]:
            return
        transfer = self.transfers[number]
        channel = self.channels[transfer.channel]
        heapq.heappush(
            channel.gathers if transfer.grows else channel.others, keys.urgency(transfer, number, self.latest_us)
        )

    def _keep_busy(self, step_us: float) -> None:
        """Give every channel work until the next step has run."""
        for channel in self.channels.values():
            while (number := self._choose(channel, self.now_us + step_us)) is not None:
                self._launch(number)

    def _choose(self, channel: _Channel, until_us: float) -> int | None:
        gather, other = self._head(channel.gathers), self._head(channel.others)
        at_us = max(self.now_us, channel.free_us)
        gather = gather if gather is not None and self._fits(gather) else None
        if gather is not None and at_us >= self.latest_us[gather] - self.reserve_us[gather]:
            # It is due: whatever travels before it now may make compute wait.
            return gather
        if channel.free_us >= until_us:
            return None
        return other if other is not None else gather

    def _head(self, heap: list[tuple[float, int]]) -> int | None:
        while heap and self.launched[heap[0][1]]:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def _fits(self, number: int) -> bool:
        return self.held_bytes + self.transfers[number].held_bytes <= self._bound(number)

    def _bound(self, number: int) -> float:
        """What may be held from now until the transfer is used."""
        if self.room is None:
            return self.policy.in_flight_bytes
        left = self.room.between(self.step, self.transfers[number].first_use)
        return min(self.policy.in_flight_bytes, self.policy.room * left)

    def _launch_with_needs(self, number: int) -> None:
        """Start a transfer that the next step needs, whatever else there is, and first what it needs itself."""
        pending = [number]
        while pending:
            top = pending[-1]
            wanted = [needed for needed in self.transfers[top].needs if not self.landed[needed]]
            unlaunched = [needed for needed in wanted if not self.launched[needed]]
            if unlaunched and not self.launched[top]:
                pending += unlaunched
                continue
            pending.pop()
            if not self.launched[top]:
                for needed in wanted:
                    self._land(needed)
                self._launch(top)

    def _launch(self, number: int) -> None:
        transfer = self.transfers[number]
        self._make_room(number, transfer)
        self.launched[number] = True
        self.launches[self.step].append(number)
        self.now_us += transfer.launch_us
        channel = self.channels[transfer.channel]
        self.ends_us[number] = channel.free_us = max(channel.free_us, self.now_us) + transfer.network_us
        self.held_bytes += transfer.held_bytes
        if not transfer.grows or self.dependents[number]:
            lag_us = 0.0 if self.dependents[number] else self.policy.caution * transfer.network_us
            heapq.heappush(self.under_way, (self.ends_us[number] + lag_us, number))

    def _make_room(self, number: int, transfer: Transfer) -> None:
        """Wait for the oldest of what holds memory until the bound allows another."""
        bound = self._bound(number)
        while self.under_way and self.held_bytes + transfer.held_bytes > bound:
            self._land(heapq.heappop(self.under_way)[1])

    # -- ending ----------------------------------------------------------------------------------------------------

    def _land_what_is_over(self) -> None:
        while self.under_way and self.under_way[0][0] <= self.now_us:
            self._land(heapq.heappop(self.under_way)[1])

    def _land(self, number: int) -> None:
        """Wait for a transfer, if nobody has yet."""
        if self.landed[number]:
            return
        transfer = self.transfers[number]
        if transfer.first_use != self.step:
            self.landings[self.step].append(number)
        self.landed[number] = True
        stalled = max(0.0, self.ends_us[number] - self.now_us)
        self.exposed_us[number] = stalled
        self.now_us += stalled
        self.held_bytes -= transfer.held_bytes
        for dependent in self.dependents[number]:
            self.missing[dependent] -= 1
            self._offer(dependent)


def _by_step(steps: Sequence[int], count: int) -> list[list[int]]:
    """The numbers of those that belong to each step, in order."""
    found: list[list[int]] = [[] for _ in range(count)]
    for number, step in enumerate(steps):
        found[step].append(number)
    return found
