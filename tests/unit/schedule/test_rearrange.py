"""Another order of steps on paper: what is drawn forward, what is put off, and what stays where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.ir.ops import Kind
from counterpoint.schedule.engine import Policy, run
from counterpoint.schedule.problem import Problem
from counterpoint.schedule.rearrange import rearranged
from tests.unit.schedule.test_engine import transfer

PLENTY = Policy(in_flight_bytes=10**9)


def exchange(number: int, makers: Sequence[int], users: Sequence[int], **changed: object):
    """A transfer of what some steps make, for others."""
    after, first_use = max(makers, default=-1) + 1, min(users, default=10**6)
    return transfer(
        number,
        kind=Kind.ALL_REDUCE,
        makers=tuple(makers),
        users=tuple(users),
        after=after,
        first_use=first_use,
        **changed,
    )


def best_us(problem: Problem) -> float:
    """The shortest of the orders that are proposed, or the one that stands."""
    schedule = run(problem, PLENTY)
    found = [run(problem.reordered(order), PLENTY).step_us for order in rearranged(problem, schedule)]
    return min([schedule.step_us, *found])


def test_a_later_step_is_drawn_to_where_compute_would_wait() -> None:
    problem = Problem((10.0, 10.0, 10.0), (exchange(0, [0], [1]),), step_needs=((), (), ()))
    assert run(problem, PLENTY).step_us == 40.0
    assert (0, 2, 1) in rearranged(problem, run(problem, PLENTY))
    assert best_us(problem) == 30.0


def test_a_step_that_keeps_an_exchange_waiting_is_put_off() -> None:
    problem = Problem((10.0, 10.0, 10.0), (exchange(0, [1], [2]),), step_needs=((), (), ()))
    assert (1, 0, 2) in rearranged(problem, run(problem, PLENTY))
    assert best_us(problem) == 30.0


def test_what_hangs_together_keeps_its_order_and_waits() -> None:
    chain = Problem((10.0, 10.0, 10.0), (exchange(0, [0], [1]),), step_needs=((), (), (1,)))
    assert list(rearranged(chain, run(chain, PLENTY))) == []


def test_nothing_changes_places_where_nobody_waits_or_nobody_knows_what_may() -> None:
    hidden = Problem((10.0, 10.0, 10.0), (exchange(0, [0], [2]),), step_needs=((), (), ()))
    assert list(rearranged(hidden, run(hidden, PLENTY))) == []
    unknown = Problem((10.0, 10.0, 10.0), (exchange(0, [0], [1]),))
    assert list(rearranged(unknown, run(unknown, PLENTY))) == []


def test_buckets_that_need_the_steps_of_each_other_have_no_order() -> None:
    crossed = (exchange(0, [0, 3], [1]), exchange(1, [1], [3]))
    problem = Problem((10.0,) * 4, (crossed[0], replace(crossed[1], channel="other")), step_needs=((),) * 4)
    assert list(rearranged(problem, run(problem, PLENTY))) == []


def test_what_takes_little_stays_behind_the_step_that_it_stood_behind() -> None:
    # The last but one is ready from the beginning; there is time for it while compute waits, and memory is not free.
    problem = Problem((50.0, 50.0, 1.0, 50.0), (exchange(0, [0], [1]),), step_needs=((), (), (), ()))
    for order in rearranged(problem, run(problem, PLENTY)):
        assert order.index(2) > order.index(1)


@st.composite
def problems(draw) -> Problem:
    """Steps and exchanges, each of some steps before it and for some behind."""
    count = draw(st.integers(2, 8))
    lengths = st.sampled_from([0.0, 1.0, 10.0, 30.0])
    needs = tuple(
        tuple(sorted(draw(st.sets(st.integers(0, step - 1), max_size=2)))) if step else () for step in range(count)
    )
    exchanges = []
    for number in range(draw(st.integers(1, 3))):
        cut = draw(st.integers(1, count - 1))
        makers = sorted(draw(st.sets(st.integers(0, cut - 1), min_size=1, max_size=2)))
        users = sorted(draw(st.sets(st.integers(cut, count - 1), max_size=2)))
        used = {"first_use": count} if not users else {}
        one = exchange(number, makers, users, network_us=draw(lengths), channel=draw(st.sampled_from(["dp", "tp"])))
        exchanges.append(replace(one, **used))
    return Problem(tuple(draw(lengths) for _ in range(count)), tuple(exchanges), step_needs=needs)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_every_order_has_all_steps_behind_what_they_need(problem: Problem) -> None:
    schedule = run(problem, PLENTY)
    for order in rearranged(problem, schedule):
        assert problem.allows(order)
        back = [order.index(step) for step in range(len(order))]
        assert problem.reordered(order).reordered(back) == problem


@settings(max_examples=60, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_an_order_that_is_asked_for_is_bent_to_what_may_be(problem: Problem, random) -> None:
    wanted = random.sample(range(len(problem.steps_us)), len(problem.steps_us))
    order = problem.in_order(wanted)
    assert replace(problem, transfers=()).allows(order)
    assert problem.in_order(order) == order


@pytest.mark.parametrize("order", [(0, 1), (0, 0, 1), (2, 1, 0), (0, 1, 2, 3)])
def test_an_order_that_may_not_be_is_told_from_one_that_may(order: tuple[int, ...]) -> None:
    problem = Problem((1.0, 1.0, 1.0), (), step_needs=((), (), (1,)))
    assert not problem.allows(order)
    assert problem.allows((1, 2, 0))
