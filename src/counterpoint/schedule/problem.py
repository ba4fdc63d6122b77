"""What is to be scheduled, on paper: a row of steps, and transfers that may overlap with them.

A *step* is a node that computes, with whatever light nodes it is the first to need. A *transfer* is a collective that
is waited for. It can start once `after` steps have run and the transfers that it `needs` have ended, and its result
must be there before step `first_use`. The schedule of a graph is then: before which step each transfer starts, and
before which it is waited for. Steps stand in an order, that of the graph at first; another one is another problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from counterpoint.ir.ops import Kind


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A collective, or several that are merged into one."""

    members: tuple[int, ...]
    """The collectives of the graph whose work it does, by number."""
    kind: Kind
    channel: str
    ranks: tuple[int, ...]
    device_type: str
    nbytes: int
    """Of the whole tensor."""
    network_us: float
    launch_us: float
    """What starting it takes on the compute stream: the launch, and packing."""
    land_us: float
    """What taking its result apart takes on the compute stream, when that is first used."""
    after: int
    """How many steps must have run before it can start."""
    needs: tuple[int, ...]
    """Transfers, by number, that must have ended before it can start."""
    first_use: int
    """The step that needs its result; the number of steps where only the caller does."""
    held_bytes: int
    """What stays alive because it is under way: the result of a gather, what others send."""
    makers: tuple[int, ...] = ()
    """The steps of which what is sent is made directly."""
    users: tuple[int, ...] = ()
    """The steps that need its result."""

    @property
    def grows(self) -> bool:
        """Whether the result is larger than what is sent, so that starting early costs memory."""
        return self.kind is Kind.ALL_GATHER


@dataclass(frozen=True)
class Problem:
    """Steps and transfers of one graph."""

    steps_us: tuple[float, ...]
    transfers: tuple[Transfer, ...]
    room: Room | None = None
    """What transfers may hold beyond what the order as it is holds anyway; None where memory does not matter."""
    step_needs: tuple[tuple[int, ...], ...] | None = None
    """The steps that each step must come behind; None where steps must keep their order."""

    def reordered(self, order: Sequence[int]) -> Problem:
        """The problem with its steps in another order, in which each stands behind what it needs."""
        place = {step: k for k, step in enumerate(order)}
        needs = self.step_needs
        return Problem(
            tuple(self.steps_us[step] for step in order),
            tuple(_in_order(transfer, place) for transfer in self.transfers),
            None if self.room is None else self.room.reordered(order),
            None if needs is None else tuple(tuple(place[one] for one in needs[step]) for step in order),
        )

    def allows(self, order: Sequence[int]) -> bool:
        """Whether these are all steps, each behind what it needs, be it by way of transfers."""
        place = {step: k for k, step in enumerate(order)}
        if self.step_needs is None or len(place) < len(order) or sorted(place) != list(range(len(self.steps_us))):
            return list(order) == list(range(len(self.steps_us)))
        made: list[int] = []
        for transfer in self.transfers:
            # Transfers that are not merged need earlier ones only.
            steps, transfers = (place[step] for step in transfer.makers), (made[one] for one in transfer.needs)
            made.append(max((*steps, *transfers), default=-1))
        brought = all(
            place[user] > last for transfer, last in zip(self.transfers, made, strict=True) for user in transfer.users
        )
        return brought and all(place[one] < place[step] for step, needs in enumerate(self.step_needs) for one in needs)

    def in_order(self, steps: Iterable[int]) -> tuple[int, ...]:
        """The steps in this order, but each behind what it needs."""
        order: list[int] = []
        written = [False] * len(self.steps_us)
        for step in steps:
            self.write(step, written, order)
        return tuple(order)

    def write(self, step: int, written: list[bool], order: list[int]) -> None:
        """Put the step at the end of an order, behind what is missing of what it needs."""
        pending = [step]
        while pending:
            top = pending[-1]
            missing = [needed for needed in (self.step_needs or {top: ()})[top] if not written[needed]]
            if written[top] or not missing:
                pending.pop()
                if not written[top]:
                    written[top] = True
                    order.append(top)
            else:
                pending += reversed(missing)

    def merged(self, buckets: Iterable[Sequence[int]], price: Price) -> Problem:
        """The problem with these disjoint sets of transfers merged, each into one."""
        joined = [tuple(bucket) for bucket in buckets if len(bucket) > 1]
        taken = {number for bucket in joined for number in bucket}
        groups = sorted([*joined, *((k,) for k in range(len(self.transfers)) if k not in taken)], key=min)
        home = {number: index for index, group in enumerate(groups) for number in group}
        transfers = tuple(self._join([self.transfers[k] for k in group], price) for group in groups)
        return replace(self, transfers=tuple(_renumbered(transfer, home) for transfer in transfers))

    @property
    def has_order(self) -> bool:
        """Whether the transfers can be started one after the other, each behind those that it needs. Merging may have
        made two buckets need each other."""
        missing = [len(transfer.needs) for transfer in self.transfers]
        needed_by: list[list[int]] = [[] for _ in self.transfers]
        for number, transfer in enumerate(self.transfers):
            for needed in transfer.needs:
                needed_by[needed].append(number)
        ready = [number for number, count in enumerate(missing) if not count]
        for number in ready:
            for dependent in needed_by[number]:
                missing[dependent] -= 1
                if not missing[dependent]:
                    ready.append(dependent)
        return len(ready) == len(self.transfers)

    @staticmethod
    def _join(members: Sequence[Transfer], price: Price) -> Transfer:
        first = members[0]
        if len(members) == 1:
            return first
        after = max(member.after for member in members)
        joined = replace(
            first,
            members=tuple(number for member in members for number in member.members),
            nbytes=sum(member.nbytes for member in members),
            launch_us=max(member.launch_us for member in members),
            land_us=sum(member.land_us for member in members),
            after=after,
            needs=tuple(sorted({number for member in members for number in member.needs})),
            # Merging may need steps to change places: a use then comes behind what the other members are made of.
            first_use=max(after, min(member.first_use for member in members)),
            held_bytes=sum(member.held_bytes for member in members),
            makers=tuple(sorted({step for member in members for step in member.makers})),
            users=tuple(sorted({step for member in members for step in member.users})),
        )
        return price(joined)


class Room:
    """Bytes that are left under a bound while each step runs; asks for the least over a range at once."""

    def __init__(self, left_bytes: Sequence[int]) -> None:
        self._least = [list(left_bytes)]
        width = 1
        while 2 * width <= len(left_bytes):
            half = self._least[-1]
            self._least.append([min(a, b) for a, b in zip(half, half[width:], strict=False)])
            width *= 2

    def between(self, first: int, end: int) -> int:
        """The least that is left from step `first` up to, and not with, step `end`; at least of one step."""
        last = len(self._least[0])
        first = min(first, last - 1)
        end = min(max(end, first + 1), last)
        level = (end - first).bit_length() - 1
        row = self._least[level]
        return min(row[first], row[end - (1 << level)])

    def reordered(self, order: Sequence[int]) -> Room:
        """The room when steps change places and each keeps what it had: near enough to begin with."""
        left = self._least[0]
        return Room([left[step] for step in order])


Price = Callable[[Transfer], Transfer]
"""Fills in what a merged transfer takes: on the network, to pack and to take apart."""


def _renumbered(transfer: Transfer, home: dict[int, int]) -> Transfer:
    needs = tuple(sorted({home[number] for number in transfer.needs}))
    return transfer if needs == transfer.needs else replace(transfer, needs=needs)


def _in_order(transfer: Transfer, place: Mapping[int, int]) -> Transfer:
    makers, users = (tuple(sorted(place[step] for step in steps)) for steps in (transfer.makers, transfer.users))
    after = makers[-1] + 1 if makers else 0
    first_use = max(after, users[0] if users else len(place))
    return replace(transfer, makers=makers, users=users, after=after, first_use=first_use)
