"""From a schedule to an order of nodes, and from there to the fewest moves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from typing import TypeVar

from torch.fx import Node

from counterpoint.schedule.engine import Schedule
from counterpoint.schedule.reading import Reading, Role

T = TypeVar("T", bound=Hashable)


def order_of(reading: Reading, schedule: Schedule) -> list[Node]:
    """All nodes in the order that a schedule asks for. Whatever it asks for, each node stands behind what it needs."""
    return _Writer(reading).write(schedule)


def by_end(schedule: Schedule) -> list[int]:
    """The transfers in the order in which they are expected to be over."""
    return sorted(range(len(schedule.ends_us)), key=lambda number: (schedule.ends_us[number], number))


class _Writer:
    """Writes nodes down one after the other, each behind what it needs."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.nodes = reading, reading.view.nodes
        self.index = {node: k for k, node in enumerate(self.nodes)}
        self.written = [False] * len(self.nodes)
        self.order: list[Node] = []

    def write(self, schedule: Schedule) -> list[Node]:
        given = [k for k, role in enumerate(self.reading.roles) if role is Role.GIVEN]
        for k in given:
            # Inputs come first, whatever is done with them.
            self._append(k)
        for step, (launches, landings) in enumerate(zip(schedule.launches, schedule.landings, strict=True)):
            for number in landings:
                if number not in launches:
                    self._land(number)
            for number in launches:
                self._write(self.reading.starts[number])
            for number in landings:
                self._land(number)
            if step < len(self.reading.steps):
                self._write(self.reading.steps[step])
        self._rest(schedule)
        return self.order

    def _land(self, number: int) -> None:
        for wait in self.reading.waits[number]:
            self._write(wait)

    def _rest(self, schedule: Schedule) -> None:
        """What only the caller reads: results in the order in which they are there, each with what is made of it."""
        due = {self.reading.starts[number]: place for place, number in enumerate(by_end(schedule), 1)}
        for k, node in enumerate(self.nodes):
            before = max((due.get(self.index[source], 0) for source in node.all_input_nodes), default=0)
            due[k] = max(due.get(k, 0), before)
        left = [k for k, done in enumerate(self.written) if not done and self.nodes[k].op != "output"]
        for k in sorted(left, key=lambda k: (due[k], k)):
            self._write(k)
        self._write(len(self.nodes) - 1)

    def _write(self, k: int) -> None:
        """The node, and first what it needs of what is missing, in the order of before."""
        pending = [k]
        while pending:
            top = pending[-1]
            if self.written[top]:
                pending.pop()
                continue
            missing = {self.index[source] for source in self.reading.view.predecessors(self.nodes[top])}
            missing = {source for source in missing if not self.written[source]}
            if missing:
                pending += sorted(missing, reverse=True)
            else:
                pending.pop()
                self._append(top)

    def _append(self, k: int) -> None:
        self.written[k] = True
        self.order.append(self.nodes[k])


def fewest_moves(nodes: Sequence[T], order: Sequence[T]) -> Iterator[tuple[tuple[T, ...], T]]:
    """Runs of nodes to move and before what, so that `nodes` stand in `order`: all but a longest run of those that
    stand right among themselves already. The last node of the order must stay the last."""
    place = {node: k for k, node in enumerate(nodes)}
    staying = _longest_rising([place[node] for node in order])
    run: list[T] = []
    for node, stays in zip(order, staying, strict=True):
        if not stays:
            run.append(node)
        elif run:
            yield tuple(run), node
            run = []


def _longest_rising(values: Sequence[int]) -> list[bool]:
    """Which of the values belong to a longest rising subsequence; patience sorting."""
    tops: list[int] = []
    holders: list[int] = []
    before: list[int] = []
    for k, value in enumerate(values):
        pile = bisect_left(tops, value)
        before.append(holders[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(value)
            holders.append(k)
        else:
            tops[pile], holders[pile] = value, k
    chosen = [False] * len(values)
    at = holders[-1] if holders else -1
    while at >= 0:
        chosen[at] = True
        at = before[at]
    return chosen
