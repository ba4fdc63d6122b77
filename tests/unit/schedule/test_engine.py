"""The scheduler on problems on paper: who goes first, what is prefetched, what is waited for early, and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from counterpoint.ir.ops import Kind
from counterpoint.schedule.engine import Policy, Schedule, run
from counterpoint.schedule.keys import latest_starts, reserves, urgency
from counterpoint.schedule.problem import Problem, Room, Transfer
from counterpoint.schedule.search import Search, Shelf

PLENTY = Policy(in_flight_bytes=10**9)


def transfer(number: int, **changed: object) -> Transfer:
    base = Transfer(
        members=(number,),
        kind=Kind.ALL_GATHER,
        channel="dp",
        ranks=(0, 1),
        device_type="cpu",
        nbytes=100,
        network_us=10.0,
        launch_us=0.0,
        land_us=0.0,
        after=0,
        needs=(),
        first_use=0,
        held_bytes=100,
    )
    return replace(base, **changed)  # type: ignore[arg-type]


def reduction(number: int, **changed: object) -> Transfer:
    return transfer(number, **{"kind": Kind.REDUCE_SCATTER, "first_use": 4, **changed})


def started_at(schedule: Schedule, number: int) -> int:
    return next(step for step, launched in enumerate(schedule.launches) if number in launched)


STEPS = (10.0, 10.0, 10.0, 10.0)


def test_gathers_are_prefetched_and_only_the_first_is_exposed() -> None:
    problem = Problem(STEPS, tuple(transfer(k, first_use=k) for k in range(4)))
    schedule = run(problem, PLENTY)
    assert schedule.exposed_us == (10.0, 0.0, 0.0, 0.0)
    assert schedule.step_us == 50.0


def test_the_memory_in_flight_bounds_how_far_gathers_are_prefetched() -> None:
    problem = Problem(STEPS, tuple(transfer(k, first_use=3) for k in range(4)))
    assert all(started_at(run(problem, PLENTY), k) < 3 for k in range(3))
    narrow = run(problem, Policy(in_flight_bytes=100))
    assert [started_at(narrow, k) for k in range(4)].count(3) == 3


def test_what_is_left_under_a_bound_counts_until_the_use() -> None:
    problem = Problem(STEPS, (transfer(0, first_use=3),), Room([500, 50, 500, 500]))
    assert started_at(run(problem, PLENTY), 0) == 2
    assert started_at(run(replace(problem, room=Room([500] * 4)), PLENTY), 0) == 0


def test_a_gather_that_is_due_goes_before_reductions_and_others_wait_for_them() -> None:
    due = Problem(STEPS, (reduction(0), transfer(1, first_use=1)))
    assert run(due, PLENTY).launches[0][0] == 1
    later = Problem((10.0,) * 9, (reduction(0, first_use=9), transfer(1, first_use=8)))
    assert run(later, PLENTY).launches[0][0] == 0


def test_reductions_drain_behind_compute_and_are_waited_for_before_their_use_once_they_are_over() -> None:
    schedule = run(Problem(STEPS, (reduction(0, after=1),)), PLENTY)
    assert (started_at(schedule, 0), schedule.exposed_us) == (1, (0.0,))
    assert schedule.landings == ((), (), (), (0,), ())


def test_a_transfer_that_needs_another_starts_once_that_is_over() -> None:
    chained = Problem(STEPS, (reduction(0), reduction(1, channel="other", needs=(0,))))
    schedule = run(chained, PLENTY)
    assert started_at(schedule, 0) < started_at(schedule, 1) < 4
    assert schedule.step_us == 40.0


def test_two_channels_work_at_once_and_one_does_not() -> None:
    two = Problem((10.0,), (transfer(0, first_use=0), transfer(1, first_use=0, channel="tp")))
    assert run(two, PLENTY).step_us == 20.0
    one = Problem((10.0,), (transfer(0, first_use=0), transfer(1, first_use=0)))
    assert run(one, PLENTY).step_us == 30.0


def test_there_need_be_no_steps_and_no_transfers() -> None:
    assert run(Problem((), ()), PLENTY).step_us == 0.0
    assert run(Problem((), (transfer(0),)), PLENTY).launches == ((0,),)
    assert run(Problem(STEPS, ()), PLENTY).step_us == 40.0


def test_equal_ones_keep_their_order() -> None:
    schedule = run(Problem(STEPS, tuple(transfer(k, first_use=2) for k in range(3))), PLENTY)
    assert [number for launched in schedule.launches for number in launched] == [0, 1, 2]


# -- keys --------------------------------------------------------------------------------------------------------------


def test_gathers_of_one_channel_are_due_one_after_the_other() -> None:
    problem = Problem(
        STEPS, (transfer(0, first_use=2), transfer(1, first_use=2), transfer(2, first_use=3, channel="tp"))
    )
    assert latest_starts(problem) == (0.0, 10.0, 20.0)


def test_the_longest_reduction_and_a_part_of_its_own_length_are_held_in_reserve() -> None:
    problem = Problem(STEPS, (transfer(0, launch_us=1.0), reduction(1, network_us=30.0)))
    assert reserves(problem, 0.5)[0] == 5.0 + 30.0 + 1.0


def test_the_most_urgent_gather_is_due_first_and_the_first_reduction_is_used_first() -> None:
    assert urgency(transfer(0), 0, (5.0, 3.0)) > urgency(transfer(1), 1, (5.0, 3.0))
    assert urgency(reduction(0, first_use=2), 0, (0.0,)) < urgency(reduction(1, first_use=3), 1, (0.0, 0.0))


# -- the search --------------------------------------------------------------------------------------------------------

LATENCY_US = 100.0


def price(joined: Transfer) -> Transfer:
    return replace(joined, network_us=LATENCY_US + joined.nbytes / 10)


def searched(problem: Problem, plays: int) -> Search:
    count = len(problem.transfers)
    search = Search(problem, PLENTY, price, plays)
    search.sizes([Shelf(tuple(range(count)), tuple(t.nbytes for t in problem.transfers))])
    search.boundaries()
    return search


def latency_bound(count: int = 12) -> Problem:
    return Problem((10.0,) * count, tuple(price(transfer(k, first_use=k)) for k in range(count)))


def test_latency_makes_buckets_and_a_budget_of_one_play_makes_none() -> None:
    problem = latency_bound()
    first, best = searched(problem, 1), searched(problem, 100)
    assert best.best.step_us < first.best.step_us / 3
    assert any(len(bucket) > 1 for bucket in best.chosen[0])
    assert all(len(bucket) == 1 for bucket in first.chosen.get(0, ()))


@pytest.mark.parametrize("plays", [1, 2, 5, 20, 100])
def test_more_plays_never_lead_to_a_longer_step(plays: int) -> None:
    problem = latency_bound()
    fewer, more = searched(problem, plays), searched(problem, 2 * plays)
    assert more.best.step_us <= fewer.best.step_us * 1.001
    assert fewer.plays_left >= 0


def test_buckets_that_would_need_each_other_are_not_tried() -> None:
    crossed = [reduction(0), reduction(1, needs=(0,), nbytes=7), reduction(2), reduction(3, needs=(2,), nbytes=7)]
    problem = Problem(STEPS, tuple(map(price, crossed)))
    assert problem.has_order
    assert not problem.merged([(0, 3), (1, 2)], price).has_order
    assert not problem.merged([(0, 1)], price).has_order
    assert searched(problem, 50).best.step_us > 0


def test_tensors_without_elements_do_not_keep_the_search_busy() -> None:
    transfers = tuple(price(transfer(k, first_use=k, nbytes=0 if k else 8)) for k in range(4))
    assert searched(Problem(STEPS, transfers), 50).best.step_us > 0
    assert Shelf((0, 1), (0, 0)).caps(9) == [0]


@pytest.mark.parametrize(("most", "caps"), [(9, [4, 8, 16, 24]), (2, [8, 24]), (1, [24])])
def test_few_plays_try_fewer_sizes_and_all_together_among_them(most: int, caps: list[int]) -> None:
    assert Shelf(tuple(range(12)), (2,) * 12).caps(most) == caps


def test_sizes_of_two_kinds_are_sought_together() -> None:
    # Latency keeps the channel busy until both kinds are in buckets: neither gains much alone.
    gathers = [price(transfer(k, first_use=k, nbytes=10)) for k in range(6)]
    sums = [price(reduction(6 + k, after=k, first_use=6, nbytes=10)) for k in range(6)]
    problem = Problem((150.0,) * 6, tuple(gathers + sums))
    search = Search(problem, PLENTY, price, 12)
    search.sizes([Shelf(tuple(range(6)), (10,) * 6), Shelf(tuple(range(6, 12)), (10,) * 6)])
    assert all(len(buckets) < 6 for buckets in search.chosen.values())
