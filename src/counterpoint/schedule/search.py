"""Choosing buckets, and the order of compute, by playing the schedule that they lead to.

First all kinds of transfers try the same sizes, from none to all in one bucket; then each kind tries sizes while the
others keep theirs, again and again until none gains; then compute changes places where it stands waiting; at last
single boundaries are moved. Every candidate is played in full, and one stands only if the step gets shorter by more
than noise. The budget is a number of plays, not a time: all ranks must find the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from counterpoint.schedule.engine import Policy, Schedule, run
from counterpoint.schedule.problem import Price, Problem
from counterpoint.schedule.rearrange import Order, rearranged

Buckets = tuple[tuple[int, ...], ...]
"""Disjoint sets of transfers, single ones too."""

GAIN = 0.001
"""A candidate must shorten the step by this part. Smaller gains are within what costs are wrong by."""
LOOKS = 3
"""How many changes of boundaries are looked at for each that may be played."""
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

    def caps(self, most: int) -> list[int]:
        """Sizes to try: from none together to all together, doubling, at most so many."""
        return doubling(min(self.sizes), sum(self.sizes), most)


def doubling(least: int, total: int, most: int) -> list[int]:
    """Sizes from twice the least to the total, the last of them in any case."""
    # Doubling nothing would never end, and there are tensors without elements.
    caps = [max(1, 2 * least)]
    while caps[-1] < total:
        caps.append(2 * caps[-1])
    caps[-1] = total
    stride = -(-len(caps) // max(1, most))
    return caps[::-1][::stride][::-1]


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
    order: Order = ()
    """The steps of the first problem in the order that was found; empty where they stand as they stood."""
    best: Schedule = field(init=False)
    shortest_us: float = field(init=False)
    """The shortest step of all that were chosen so far."""

    def __post_init__(self) -> None:
        self.best = self._play(self.problem)
        self.shortest_us = self.best.step_us

    def sizes(self, shelves: Sequence[Shelf]) -> None:
        """Try sizes for all shelves together, then for each, those that travel longest first, until none gains."""
        longest = sorted(range(len(shelves)), key=lambda k: (-self._travel_us(shelves[k]), k))
        for number in longest:
            self.chosen.setdefault(number, tuple((member,) for member in shelves[number].members))
        if len(shelves) > 1:
            least, total = min(min(shelf.sizes) for shelf in shelves), max(sum(shelf.sizes) for shelf in shelves)
            # A search with few plays tries fewer sizes, and not only small ones.
            for cap in doubling(least, total, self.plays_left // 2):
                self._try({number: shelves[number].filled(cap) for number in longest})
        # Only what has changed since a shelf was asked can make it answer otherwise.
        unasked = list(longest)
        while unasked and self.plays_left > 0:
            number = unasked.pop(0)
            caps = shelves[number].caps(max(1, self.plays_left // 2))
            gains = [self._try({number: shelves[number].filled(cap)}) for cap in caps]
            if any(gains):
                unasked += [other for other in longest if other != number and other not in unasked]

    def rearrange(self) -> None:
        """Let steps change places where compute stands waiting, until that does not help."""
        while (order := self._better_order()) is not None:
            self.problem = self.problem.reordered(order)
            self.order = tuple(self.order[k] for k in order) if self.order else order

    def _better_order(self) -> Order | None:
        """The best of the orders that may be shorter, if any is."""
        merged, found = self._merged(self.chosen), None
        for order in rearranged(merged, self.best):
            if self.plays_left <= 0:
                break
            schedule = self._play(merged.reordered(order))
            if schedule.step_us < self.best.step_us * (1 - (0 if found else GAIN)):
                found, self.best = order, schedule
        self.shortest_us = min(self.shortest_us, self.best.step_us)
        return found

    def boundaries(self) -> None:
        """Split, join and shift neighbouring buckets, beginning with the largest ones, until nothing helps."""
        improved = True
        # What comes to nothing, since one member needs another, costs no play, but takes its time too.
        looks_left = LOOKS * self.plays_left
        while improved and self.plays_left > 0:
            improved = False
            for number in sorted(self.chosen):
                for candidate in _neighbours(self.chosen[number]):
                    looks_left -= 1
                    if self.plays_left <= 0 or looks_left <= 0:
                        return
                    if self._try({number: candidate}):
                        improved = True
                        break

    def _try(self, changed: Mapping[int, Buckets]) -> bool:
        """Take these buckets if the step gets shorter, or hardly longer and simpler; whether it got shorter."""
        changed = {
            number: tuple(part for bucket in buckets for part in self.split(bucket))
            for number, buckets in changed.items()
        }
        candidate = {**self.chosen, **changed}
        if self.plays_left <= 0 or candidate == self.chosen:
            return False
        problem = self._merged(candidate)
        if not problem.has_order:
            return False
        schedule = self._play(problem)
        shorter = schedule.step_us < self.best.step_us * (1 - GAIN)
        fewer = _count(candidate) < _count(self.chosen)
        if shorter or (fewer and schedule.step_us <= self.shortest_us * (1 + SIMPLER)):
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


def _count(chosen: Mapping[int, Buckets]) -> int:
    return sum(map(len, chosen.values()))


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
