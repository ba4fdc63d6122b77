"""Whether the orders in which ranks launch their collectives can deadlock.

A collective is over when all ranks of its group have launched it, the n-th of a group meeting the n-th on every rank;
a message, when both ends have. Whether a launch may go on before the others have come depends on buffers, on the
processor and on the library, so the strictest reading is taken: it may not, except for messages of one batch. What
passes so is safe on every backend; what fails is reported with who waits for whom, rank by rank.

    orders = {rank: launches_of(graphs[rank], groups, rank, world_size) for rank in range(world_size)}
    deadlock = find_deadlock(orders)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from counterpoint.sim.launches import Launch, Meeting


class Stuck(NamedTuple):
    """A rank that cannot go on."""

    rank: int
    launch: Launch
    waits_for: tuple[int, ...]
    """The ranks that have not come."""

    def __str__(self) -> str:
        absent = ", ".join(map(str, self.waits_for[:8])) + (", ..." if len(self.waits_for) > 8 else "")
        return (
            f"rank {self.rank} stands at {self.launch.kind.value} {self.launch.node} of group {self.launch.group} "
            f"and waits for rank{'s' if len(self.waits_for) > 1 else ''} {absent}"
        )


@dataclass(frozen=True)
class Deadlock:
    """Ranks that wait for each other, or for ranks that never come."""

    stuck: tuple[Stuck, ...]
    """Every rank that cannot go on."""
    cycle: tuple[Stuck, ...] = ()
    """Those that wait for each other in a ring; empty where somebody waits for a rank that has ended."""
    mismatch: str = ""
    """What does not fit together where ranks meet with different things, in words."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes at which the ranks of the ring stand, or all that are stuck."""
        return tuple(dict.fromkeys(one.launch.node for one in self.cycle or self.stuck))

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of these nodes."""
        return tuple(dict.fromkeys(one.launch.group for one in self.cycle or self.stuck))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the ring, or all that are stuck."""
        return tuple(one.rank for one in self.cycle or self.stuck)

    def __str__(self) -> str:
        why = "ranks wait for each other" if self.cycle else "ranks wait for others that never come"
        shown = self.cycle or self.stuck[:8]
        return "\n".join([f"deadlock: {self.mismatch or why}", *(f"  {one}" for one in shown)])


def find_deadlock(orders: Mapping[int, Sequence[Launch]]) -> Deadlock | None:
    """Play the launches of all ranks; None where every rank reaches its end.

    Which rank moves next makes no difference to what can be reached, since a meeting that can take place
    still can later.
    """
    play = _Play(orders)
    arriving = list(orders)
    while arriving:
        rank = arriving.pop()
        if play.now(rank) is None:
            continue
        freed = play.arrive(rank)
        if play.mismatch:
            return play.report()
        arriving.extend(freed)
    return play.report() if any(play.now(rank) is not None for rank in orders) else None


_Key = tuple[int, int]
"""A meeting: which ranks (by a number for each distinct set), and for the how-many-th time."""


@dataclass
class _Gathering:
    """A meeting that is taking place."""

    meeting: Meeting
    launch: Launch
    """As the first to come sees it."""
    there: list[int] = field(default_factory=list)


class _Play:
    """How far each rank has come, and who stands where."""

    def __init__(self, orders: Mapping[int, Sequence[Launch]]) -> None:
        self._orders = orders
        self._position = dict.fromkeys(orders, 0)
        self._pending = dict.fromkeys(orders, 0)
        self._numbers: dict[Meeting, int] = {}
        self._by_object: dict[int, int] = {}
        self._turns: dict[tuple[int, int], int] = {}
        self._open: dict[_Key, _Gathering] = {}
        self.mismatch = ""

    def now(self, rank: int) -> Launch | None:
        """Where a rank stands; None at its end."""
        order, at = self._orders.get(rank, ()), self._position.get(rank, 0)
        return order[at] if at < len(order) else None

    def arrive(self, rank: int) -> list[int]:
        """A rank comes to its next launch. Returns the ranks that may go on because of it."""
        launch = self.now(rank)
        if launch is None:
            return []
        self._pending[rank] = len(launch.meetings)
        freed = [] if launch.meetings else self._advance([rank])
        for meeting in launch.meetings:
            key = self._key(rank, meeting)
            gathering = self._open.setdefault(key, _Gathering(meeting, launch))
            gathering.there.append(rank)
            self._compare(gathering, launch, rank)
            if len(gathering.there) == len(meeting.ranks):
                del self._open[key]
                freed += self._advance(gathering.there)
        return freed

    def _advance(self, ranks: Sequence[int]) -> list[int]:
        freed = []
        for rank in ranks:
            self._pending[rank] -= 1
            if self._pending[rank] <= 0:
                self._position[rank] += 1
                freed.append(rank)
        return freed

    def _key(self, rank: int, meeting: Meeting) -> _Key:
        # Groups can have thousands of ranks, so a set of ranks is hashed once an object and not at every launch.
        number = self._by_object.get(id(meeting.ranks)) if not meeting.message else None
        if number is None:
            number = self._numbers.setdefault(meeting, len(self._numbers))
            if not meeting.message:
                self._by_object[id(meeting.ranks)] = number
        turn = self._turns.get((rank, number), 0)
        self._turns[rank, number] = turn + 1
        return number, turn

    def _compare(self, gathering: _Gathering, launch: Launch, rank: int) -> None:
        first, other = gathering.launch, gathering.there[0]
        if gathering.meeting.message or (first.kind, first.nbytes) == (launch.kind, launch.nbytes):
            return
        self.mismatch = (
            f"the ranks of group {launch.group} meet with different collectives: "
            f"{_described(first)} on rank {other}, {_described(launch)} on rank {rank}"
        )

    def report(self) -> Deadlock:
        """Who stands where, and who waits for whom in a ring."""
        absent: dict[int, set[int]] = {}
        for gathering in self._open.values():
            missing = set(gathering.meeting.ranks) - set(gathering.there)
            for rank in gathering.there:
                absent.setdefault(rank, set()).update(missing)
        stuck = {}
        for rank in sorted(self._orders):
            launch = self.now(rank)
            if launch is not None and rank in absent:
                stuck[rank] = Stuck(rank, launch, tuple(sorted(absent[rank])))
        return Deadlock(tuple(stuck.values()), () if self.mismatch else _ring(stuck), self.mismatch)


def _described(launch: Launch) -> str:
    size = "" if launch.nbytes is None else f" of {launch.nbytes} bytes"
    return f"{launch.kind.value} {launch.node}{size}"


def _ring(stuck: Mapping[int, Stuck]) -> tuple[Stuck, ...]:
    """Ranks that wait for each other in a ring, where there is one."""
    done: set[int] = set()
    for first in stuck:
        path: dict[int, None] = {}
        rank: int | None = first
        while rank is not None and rank not in path and rank not in done:
            path[rank] = None
            rank = next((other for other in stuck[rank].waits_for if other in stuck and other not in done), None)
        if rank is not None and rank in path:
            ranks = list(path)
            return tuple(stuck[one] for one in ranks[ranks.index(rank) :])
        done.update(path)
    return ()
