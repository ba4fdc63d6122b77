"""From one order to another with the fewest moves."""

from __future__ import annotations

import random

import pytest
from torch.fx import Graph, Node

from counterpoint.schedule.engine import Schedule
from counterpoint.schedule.order import by_end, fewest_moves


def nodes(count: int) -> list[Node]:
    graph = Graph()
    return [graph.placeholder(f"n{k}") for k in range(count)]


def moved(before: list[Node], order: list[Node]) -> tuple[list[Node], int]:
    """The order after the moves, and how many nodes were moved."""
    now, count = list(before), 0
    for run, target in fewest_moves(before, order):
        now = [node for node in now if node not in run]
        place = now.index(target)
        now[place:place] = run
        count += len(run)
    return now, count


@pytest.mark.parametrize("seed", range(20))
def test_the_moves_lead_to_the_order(seed: int) -> None:
    before = nodes(12)
    order = random.Random(seed).sample(before[:-1], 11) + before[-1:]
    assert moved(before, order)[0] == order


def test_one_node_that_stands_wrong_is_one_move() -> None:
    before = nodes(8)
    order = [before[5], *before[:5], *before[6:]]
    assert moved(before, order) == (order, 1)
    assert list(fewest_moves(before, before)) == []


def test_results_come_in_the_order_of_their_ends_and_ties_by_number() -> None:
    schedule = Schedule(
        launches=((0, 1, 2),), landings=((),), ends_us=(3.0, 1.0, 1.0), exposed_us=(0.0,) * 3, step_us=3
    )
    assert by_end(schedule) == [1, 2, 0]
