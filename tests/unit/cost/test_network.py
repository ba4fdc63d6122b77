"""Formulas of collectives: positive, monotone in bytes and ranks, and the right algorithm for each size."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from counterpoint.cost.link import Link
from counterpoint.cost.network import LIBRARY, Algorithm, Reach, choices, library_us
from counterpoint.cost.presets import PRESETS, topology
from counterpoint.cost.processor import PROCESSORS
from counterpoint.cost.topology import Level, Topology
from counterpoint.ir.ops import Kind

MB = 2**20
KINDS = [kind for kind in Kind if kind is not Kind.WAIT]
BOX = topology("h100x8-ib400")
FLAT = Topology(
    name="flat",
    levels=(Level(name="network", ways=(Link(latency_us=10, bandwidth_gbps=8),)),),
    processor=PROCESSORS["h100"],
    call_us=(5,),
)
"""A byte a nanosecond, 10 us a step, 5 us a call."""

PLACES = st.sampled_from([*PRESETS.values(), FLAT])
SIZES = st.one_of(st.just(0.0), st.floats(1, 1e11))


def ranks_of(count: int, step: int) -> range:
    return range(0, count * step, step)


@given(PLACES, st.sampled_from(KINDS), SIZES, st.integers(1, 600), st.sampled_from([1, 8]))
def test_every_time_is_finite_and_positive(place, kind, nbytes, count, step) -> None:
    found = choices(kind, nbytes, ranks_of(count, step), place)
    assert found
    assert all(0 < us < float("inf") for us in found.values())
    assert any(algorithm in LIBRARY for algorithm in found)


@given(PLACES, st.sampled_from(KINDS), SIZES, SIZES, st.integers(1, 100), st.sampled_from([1, 4, 8]))
def test_more_bytes_never_take_less(place, kind, a, b, count, step) -> None:
    less, more = (choices(kind, size, ranks_of(count, step), place) for size in sorted((a, b)))
    assert less.keys() == more.keys()
    assert all(less[algorithm] <= more[algorithm] * (1 + 1e-9) for algorithm in less)


@given(PLACES, st.sampled_from(KINDS), SIZES, st.integers(1, 8), st.integers(1, 8))
@example(BOX, Kind.ALL_REDUCE, 1e9, 3, 4)
def test_more_ranks_of_one_node_never_take_less(place, kind, nbytes, a, b) -> None:
    fewer, more = (library_us(kind, nbytes, range(count), place) for count in sorted((a, b)))
    assert fewer <= more * (1 + 1e-9)


@given(PLACES, st.sampled_from(KINDS), SIZES, st.integers(1, 64), st.integers(1, 64))
def test_more_whole_nodes_never_take_less(place, kind, nbytes, a, b) -> None:
    fewer, more = (library_us(kind, nbytes, range(8 * nodes), place) for nodes in sorted((a, b)))
    assert fewer <= more * (1 + 1e-9)


@given(st.sampled_from(KINDS), SIZES, st.integers(2, 64), st.floats(1, 100), st.floats(1, 100))
def test_a_better_link_never_takes_more(kind, nbytes, count, faster, shorter) -> None:
    better = Link(latency_us=10 / shorter, bandwidth_gbps=8 * faster)
    place = Topology(
        name="better", levels=(Level(name="network", ways=(better,)),), processor=FLAT.processor, call_us=(5,)
    )
    assert library_us(kind, nbytes, range(count), place) <= library_us(kind, nbytes, range(count), FLAT) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("kind", "ring_us"),
    [
        # 5 us the call; 3 steps of 10 us, twice for an all-reduce; 3/4 of a megabyte, twice; or all of it.
        (Kind.ALL_REDUCE, 5 + 60 + 1500),
        (Kind.ALL_GATHER, 5 + 30 + 750),
        (Kind.REDUCE_SCATTER, 5 + 30 + 750),
        (Kind.BROADCAST, 5 + 30 + 1000),
    ],
)
def test_a_ring_by_hand(kind: Kind, ring_us: float) -> None:
    assert choices(kind, 1e6, range(4), FLAT)[Algorithm.RING] == pytest.approx(ring_us)


def test_a_tree_and_an_exchange_by_hand() -> None:
    found = choices(Kind.ALL_REDUCE, 1e6, range(4), FLAT)
    # Two steps up, two down, and each byte twice.
    assert found[Algorithm.TREE] == pytest.approx(5 + 2 * (2 * 10 + 1000))
    exchange = choices(Kind.ALL_TO_ALL, 1e6, range(4), FLAT)
    assert exchange == {Algorithm.DIRECT: pytest.approx(5 + 10 + 750)}
    assert choices(Kind.SEND, 1e6, (0, 1), FLAT) == {Algorithm.DIRECT: pytest.approx(5 + 10 + 1000)}


def best(kind: Kind, nbytes: float, ranks: Sequence[int], *among: Algorithm) -> Algorithm:
    found = choices(kind, nbytes, ranks, BOX)
    return min(among, key=lambda algorithm: found[algorithm])


def test_one_shot_wins_small_two_shot_in_between_and_the_switch_large() -> None:
    among = (Algorithm.ONE_SHOT, Algorithm.TWO_SHOT, Algorithm.RING, Algorithm.MULTICAST)
    order = [best(Kind.ALL_REDUCE, 2.0**power, range(8), *among) for power in range(8, 34)]
    assert list(dict.fromkeys(order)) == [Algorithm.ONE_SHOT, Algorithm.TWO_SHOT, Algorithm.MULTICAST]
    crossing = 2.0 ** (8 + order.index(Algorithm.TWO_SHOT))
    assert 16 * 1024 <= crossing <= MB


def test_a_tree_wins_small_and_a_ring_large_where_nodes_are_few() -> None:
    order = [best(Kind.ALL_REDUCE, 2.0**power, range(16), Algorithm.TREE, Algorithm.RING) for power in range(8, 34)]
    assert list(dict.fromkeys(order)) == [Algorithm.TREE, Algorithm.RING]


def test_hierarchy_saves_steps_for_small_gathers_over_many_nodes() -> None:
    among = (Algorithm.HIERARCHICAL, Algorithm.RING)
    assert best(Kind.ALL_GATHER, 64 * 1024, range(256), *among) is Algorithm.HIERARCHICAL
    assert best(Kind.ALL_GATHER, 2.0**33, range(256), *among) is Algorithm.RING


def test_small_messages_go_the_quick_way_and_large_ones_the_wide_way() -> None:
    steps, tree = Reach.of(BOX, range(8)), choices(Kind.ALL_GATHER, 1e9, range(8), BOX)[Algorithm.RING]
    assert library_us(Kind.ALL_GATHER, 8.0, range(8), BOX) < 15
    # Large ones come within 3 % of the widest way.
    assert tree == pytest.approx(1e9 * 7 / 8 * 8 / (steps.ring_gbps(-1) * 1e3), rel=0.03)


def test_all_cards_of_a_node_carry_a_ring_and_one_rank_a_node_has_only_its_own() -> None:
    whole, single = Reach.of(BOX, range(16)), Reach.of(BOX, (0, 8))
    card, inside = BOX.levels[1].link.bandwidth_gbps, BOX.levels[0].link.bandwidth_gbps
    assert whole.ring_gbps(-1) == min(8 * card, inside)
    assert single.ring_gbps(-1) == card
    shared = topology("a100x8-pcie4-eth100")
    assert Reach.of(shared, range(16)).ring_gbps(-1) == shared.levels[1].link.bandwidth_gbps


def test_most_of_an_exchange_between_nodes_takes_the_network() -> None:
    near = library_us(Kind.ALL_TO_ALL, 1e9, range(8), BOX)
    far = library_us(Kind.ALL_TO_ALL, 1e9, range(16), BOX)
    assert far > 4 * near


@pytest.mark.parametrize(
    ("kind", "ranks", "absent"),
    [
        (Kind.ALL_REDUCE, range(16), Algorithm.ONE_SHOT),
        (Kind.ALL_REDUCE, range(8), Algorithm.HIERARCHICAL),
        (Kind.ALL_GATHER, range(8), Algorithm.TWO_SHOT),
        (Kind.ALL_TO_ALL, range(8), Algorithm.RING),
        (Kind.BROADCAST, range(8), Algorithm.ONE_SHOT),
    ],
)
def test_what_cannot_be_done_is_no_choice(kind: Kind, ranks: range, absent: Algorithm) -> None:
    assert absent not in choices(kind, 1e6, ranks, BOX)


def test_peers_of_pcie_boxes_have_no_shots_and_older_switches_no_multicast() -> None:
    pcie, ampere = topology("l40sx8-pcie4-eth100"), topology("a100x8-ib200")
    assert Algorithm.ONE_SHOT not in choices(Kind.ALL_REDUCE, 1e6, range(8), pcie)
    found = choices(Kind.ALL_REDUCE, 1e6, range(8), ampere)
    assert Algorithm.ONE_SHOT in found
    assert Algorithm.MULTICAST not in found


def test_gloo_scatters_by_reducing_everything() -> None:
    hosts = topology("cpu-10g")
    assert library_us(Kind.REDUCE_SCATTER, 1e8, range(4), hosts) == library_us(Kind.ALL_REDUCE, 1e8, range(4), hosts)
    assert library_us(Kind.REDUCE_SCATTER, 1e8, range(4), FLAT) < library_us(Kind.ALL_REDUCE, 1e8, range(4), FLAT)


def test_a_group_of_one_takes_a_call_at_most() -> None:
    assert choices(Kind.ALL_REDUCE, 1e9, (3,), FLAT) == {Algorithm.DIRECT: 5}
