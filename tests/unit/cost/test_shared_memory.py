"""Costs of collectives in shared memory: they grow with what is moved, and the choice follows from them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoint.cost.shared_memory import (
    HostMemory,
    all_gather_us,
    crossing_bytes,
    host_memory,
    one_shot_us,
    prefers_two_shot,
    reduce_scatter_us,
    two_shot_us,
)

COSTS = (one_shot_us, two_shot_us, all_gather_us, reduce_scatter_us)
RANKS = st.integers(2, 64)
BYTES = st.floats(0, 1e10)
POSITIVE = st.floats(1e-3, 1e3)
MEMORIES = st.builds(
    HostMemory,
    call_us=POSITIVE,
    exchange_us=POSITIVE,
    copy_us_per_mb=POSITIVE,
    read_us_per_mb=POSITIVE,
    again_us_per_mb=POSITIVE,
)


@given(BYTES, BYTES, RANKS, MEMORIES)
def test_more_bytes_take_longer(one: float, other: float, ranks: int, memory: HostMemory) -> None:
    small, large = sorted((one, other))
    assert all(0 < cost(small, ranks, memory) <= cost(large, ranks, memory) for cost in COSTS)


@given(st.floats(0, 1e7), RANKS, MEMORIES)
def test_the_choice_is_the_cheaper_one_and_changes_at_the_crossing(
    nbytes: float, ranks: int, memory: HostMemory
) -> None:
    cheaper = two_shot_us(nbytes, ranks, memory) < one_shot_us(nbytes, ranks, memory)
    assert prefers_two_shot(nbytes, ranks, memory) == cheaper
    crossing = crossing_bytes(ranks, memory)
    if not math.isclose(nbytes, crossing, rel_tol=1e-6, abs_tol=1):
        assert cheaper == (nbytes > crossing)


@pytest.mark.parametrize(("ranks", "least", "most"), [(2, 16e3, 128e3), (4, 2e3, 32e3), (8, 1e3, 8e3)])
def test_the_crossing_lies_where_it_was_measured(ranks: int, least: float, most: float) -> None:
    assert least < crossing_bytes(ranks) < most


def test_more_ranks_cross_earlier() -> None:
    crossings = [crossing_bytes(ranks) for ranks in range(2, 32)]
    assert crossings == sorted(crossings, reverse=True)


def test_ranks_that_share_processors_cross_later() -> None:
    """Every further exchange is a change of processes there."""
    assert host_memory(4, 4) == host_memory(4, 8) == HostMemory()
    assert 100e3 < crossing_bytes(4, host_memory(4, 2)) < 500e3


def test_a_rank_alone_has_nothing_to_choose() -> None:
    assert not prefers_two_shot(1e9, 1)
    assert crossing_bytes(1) == math.inf
