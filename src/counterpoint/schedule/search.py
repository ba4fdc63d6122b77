"""Choosing buckets by playing the schedule that they lead to.

First each kind of transfer tries sizes from none to all in one bucket, while the others keep theirs; then single
boundaries are moved where compute stands waiting. Every candidate is played in full, and one stands only if the step
gets shorter by more than noise. The budget is a number of plays, not a time: all ranks must find the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from counterpoint.schedule.engine import Policy, Schedule, run
from counterpoint.schedule.problem import Price, Problem

Buckets = tuple[tuple[int, ...], ...]
"""Disjoint sets of transfers, single ones too."""

GAIN = 0.001
"""A candidate must shorten the step by this part. Smaller gains are within what costs are wrong by."""
SIMPLER = 0.0005
"""Of candidates that differ by less than this part, the one with fewer transfers is taken."""


Split = Callable[[tuple[int, ...]], Buckets]
"""Takes a bucket apart where one member needs another."""


def in_one_piece(bucket: tuple[int, ...]) -> Buckets:
    """The split of transfers that do not need each other."""
    return (bucket,)


@dataclass(frozen=True)
class Shelf:
    """Transfers that may share buckets, in the order in which they would fill them, and their sizes."""

    members: tuple[int, ...]
    sizes: tuple[int, ...]

    def filled(self, cap_bytes: int) -> Buckets:
        """Buckets of neighbours, each as full as the cap allows."""
        found: list[list[int]] = []
        held = 0
        for member, size in zip(self.members, self.sizes, strict=True):
            if not found or held + size > cap_bytes:
                found.append([])
                held = 0
            found[-1].append(member)
            held += size
        return tuple(map(tuple, found))

    def caps(self) -> Iterator[int]:
        """Sizes to try: from none together to all together, doubling."""
        # Doubling nothing would never end, and there are tensors without elements.
        cap, total = max(1, 2 * min(self.sizes)), sum(self.sizes)
        while cap < total:
            yield cap
            cap *= 2
        yield total


@dataclass
class Search:
    """The best buckets so far, and what they lead to."""

    problem: Problem
    policy: Policy
    price: Price
    plays_left: int
    split: Split = in_one_piece
    chosen: dict[int, Buckets] = field(default_factory=dict)
    """By number of shelf."""
    best: Schedule = field(init=False)
    shortest_us: float = field(init=False)
    """The shortest step of all that were chosen so far."""

    def __post_init__(self) -> None:
        self.best = self._play(self.problem)
        self.shortest_us = self.best.step_us

    def sizes(self, shelves: Sequence[Shelf]) -> None:
        """Try sizes for each shelf, those that travel longest first."""
        longest = sorted(range(len(shelves)), key=lambda k: (-self._travel_us(shelves[k]), k))
        for number in longest:
            self.chosen.setdefault(number, tuple((member,) for member in shelves[number].members))
        for number in longest:
            for cap in shelves[number].caps():
                if self.plays_left <= 0:
                    return
                self._try(number, shelves[number].filled(cap))

    def boundaries(self) -> None:
        """Split, join and shift neighbouring buckets, beginning with the largest ones, until nothing helps."""
        improved = True
        while improved and self.plays_left > 0:
            improved = False
            for number in sorted(self.chosen):
                for candidate in list(_neighbours(self.chosen[number])):
                    if self.plays_left <= 0:
                        return
                    if self._try(number, candidate):
                        improved = True
                        break

    def _try(self, number: int, buckets: Buckets) -> bool:
        """Take these buckets if the step gets shorter, or hardly longer and simpler; whether it got shorter."""
        buckets = tuple(part for bucket in buckets for part in self.split(bucket))
        if self.plays_left <= 0 or buckets == self.chosen[number]:
            return False
        candidate = {**self.chosen, number: buckets}
        problem = self._merged(candidate)
        if not problem.has_order:
            return False
        schedule = self._play(problem)
        shorter = schedule.step_us < self.best.step_us * (1 - GAIN)
        simpler = len(buckets) < len(self.chosen[number]) and schedule.step_us <= self.shortest_us * (1 + SIMPLER)
        if shorter or simpler:
            self.chosen, self.best = candidate, schedule
            self.shortest_us = min(self.shortest_us, schedule.step_us)
        return shorter

    def _merged(self, chosen: Mapping[int, Buckets]) -> Problem:
        return self.problem.merged([bucket for shelf in chosen.values() for bucket in shelf], self.price)

    def _play(self, problem: Problem) -> Schedule:
        self.plays_left -= 1
        return run(problem, self.policy)

    def _travel_us(self, shelf: Shelf) -> float:
        return sum(self.problem.transfers[member].network_us for member in shelf.members)


def _neighbours(buckets: Buckets) -> Iterator[Buckets]:
    """Partitions that differ by one boundary. Ends matter most: the first bucket delays its first use, and nothing is
    left to hide the last one."""
    ends_first = sorted(range(len(buckets)), key=lambda k: (min(k, len(buckets) - 1 - k), k))
    for k in ends_first:
        bucket = buckets[k]
        for at in sorted({len(bucket) // 2, len(bucket) // 4, 3 * len(bucket) // 4, 1, len(bucket) - 1}):
            if 0 < at < len(bucket):
                yield (*buckets[:k], bucket[:at], bucket[at:], *buckets[k + 1 :])
        if k + 1 < len(buckets):
            following = buckets[k + 1]
            yield (*buckets[:k], bucket + following, *buckets[k + 2 :])
            if len(bucket) > 1:
                yield (*buckets[:k], bucket[:-1], bucket[-1:] + following, *buckets[k + 2 :])
            if len(following) > 1:
                yield (*buckets[:k], bucket + following[:1], following[1:], *buckets[k + 2 :])
