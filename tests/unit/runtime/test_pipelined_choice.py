"""Which lowering runs a call, and how dims are cut and parts are sent: pure functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoint.cost.capabilities import NOTHING, Capabilities, Capability
from counterpoint.runtime.pipelined import choice
from counterpoint.runtime.pipelined.choice import Lowering
from counterpoint.runtime.pipelined.gathers import Factor, Gather, ScaledFactor
from counterpoint.runtime.pipelined.point_to_point import cut, steps
from counterpoint.runtime.pipelined.scatters import Partial

YES = Capability(True, "in this test")
EVERYTHING = Capabilities(messages=YES, shared_memory=YES, symmetric_memory=YES)
FACTOR = Factor(other=torch.ones(8, 3), bias=None, out_dtype=torch.float32)
GATHER = Gather(shard=torch.ones(4, 8), dim=-2, ranks=2, left=True, factors=(FACTOR,), keep=False, chunks=2)
SCALED = ScaledFactor(
    other=torch.ones(16, 3),
    bias=None,
    out_dtype=torch.float32,
    scale=torch.ones(()),
    result_scale=None,
    fast_accum=False,
)
PARTIAL = Partial(lefts=(torch.ones(4, 8),), rights=(torch.ones(8, 6),), bias=None, out_dtype=None)


def only(name: str) -> Capabilities:
    return replace(NOTHING, **{name: YES})


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        (NOTHING, Lowering.PLAIN),
        (only("messages"), Lowering.MESSAGES),
        (only("shared_memory"), Lowering.SHARED_MEMORY),
    ],
)
def test_the_best_that_is_there_is_taken(capabilities: Capabilities, expected: Lowering) -> None:
    assert choice.for_gather(GATHER, capabilities) is expected
    assert choice.for_scatter(PARTIAL, -2, 2, capabilities) is expected
    assert choice.for_exchange((4, 8), 2, capabilities) is expected


@pytest.mark.parametrize("capabilities", [only("symmetric_memory"), EVERYTHING])
def test_on_symmetric_memory_rows_are_gathered_by_us_and_the_rest_by_torch(capabilities: Capabilities) -> None:
    assert choice.for_gather(GATHER, capabilities) is Lowering.SYMMETRIC_MEMORY
    assert choice.for_gather(replace(GATHER, factors=(SCALED,)), capabilities) is Lowering.TORCH_FUSED
    assert choice.for_gather(replace(GATHER, dim=-1), capabilities) is Lowering.TORCH_FUSED
    assert choice.for_scatter(PARTIAL, -2, 2, capabilities) is Lowering.TORCH_FUSED


def test_an_exchange_takes_no_symmetric_memory() -> None:
    assert choice.for_exchange((4, 8), 2, EVERYTHING) is Lowering.SHARED_MEMORY
    assert choice.for_exchange((4, 8), 2, only("symmetric_memory")) is Lowering.PLAIN
    assert choice.for_exchange((0, 8), 2, EVERYTHING) is Lowering.PLAIN


def test_an_all_reduce_takes_no_symmetric_memory() -> None:
    assert choice.for_all_reduce(PARTIAL, "sum", 2, EVERYTHING) is Lowering.SHARED_MEMORY
    assert choice.for_all_reduce(PARTIAL, "sum", 2, only("symmetric_memory")) is Lowering.PLAIN
    wide = replace(PARTIAL, out_dtype=torch.complex64)
    assert choice.for_all_reduce(wide, "sum", 2, EVERYTHING) is Lowering.MESSAGES


@pytest.mark.parametrize(
    "change",
    [
        {"left": False},
        {"factors": (replace(FACTOR, bias=torch.ones(3)),)},
        {"factors": (replace(FACTOR, out_dtype=torch.bfloat16),)},
        {"factors": (replace(FACTOR, other=torch.ones(2, 8, 3)),)},
        {"factors": (), "keep": True},
    ],
)
def test_what_torch_cannot_gather_is_copied_by_us(change: dict[str, Any]) -> None:
    made = replace(GATHER, dim=-1, **change)
    assert choice.for_gather(made, EVERYTHING) is Lowering.SYMMETRIC_MEMORY


@pytest.mark.parametrize(
    "change",
    [
        {"lefts": PARTIAL.lefts * 2, "rights": PARTIAL.rights * 2},
        {"bias": torch.ones(6)},
        {"out_dtype": torch.bfloat16},
        {"rights": (torch.ones(2, 8, 6),)},
    ],
)
def test_what_torch_cannot_scatter_is_copied_by_us(change: dict[str, Any]) -> None:
    assert choice.for_scatter(replace(PARTIAL, **change), -2, 2, EVERYTHING) is Lowering.SYMMETRIC_MEMORY


def test_a_middle_dim_is_copied_by_us() -> None:
    middle = replace(GATHER, shard=torch.ones(2, 4, 8), dim=-2)
    assert choice.for_gather(middle, EVERYTHING) is Lowering.SYMMETRIC_MEMORY
    tall = replace(PARTIAL, lefts=(torch.ones(2, 4, 8),))
    assert choice.for_scatter(tall, -2, 2, EVERYTHING) is Lowering.SYMMETRIC_MEMORY
    assert choice.for_scatter(tall, -3, 2, EVERYTHING) is Lowering.TORCH_FUSED


@pytest.mark.parametrize(
    "gather",
    [
        replace(GATHER, ranks=1),
        replace(GATHER, shard=torch.ones(0, 8)),
        replace(GATHER, dim=-1, factors=(SCALED,)),
    ],
)
def test_what_cannot_be_pipelined_runs_plainly(gather: Gather) -> None:
    assert choice.for_gather(gather, EVERYTHING) is Lowering.PLAIN


def test_empty_reductions_run_plainly() -> None:
    empty = replace(PARTIAL, lefts=(torch.ones(0, 8),))
    assert choice.for_scatter(empty, -2, 2, EVERYTHING) is Lowering.PLAIN
    assert choice.for_all_reduce(empty, "sum", 2, EVERYTHING) is Lowering.PLAIN


@given(st.integers(0, 40), st.integers(1, 50))
def test_a_dim_is_cut_evenly_and_completely(extent: int, chunks: int) -> None:
    parts = cut(extent, chunks)
    assert [i for part in parts for i in range(part.start, part.start + part.length)] == list(range(extent))
    assert len(parts) == min(chunks, extent)
    lengths = {part.length for part in parts}
    assert not parts or max(lengths) - min(lengths) <= 1


@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from([1, -1]))
def test_every_send_has_its_receive_at_the_same_step(ranks: int, chunks: int, towards: int) -> None:
    plans = [list(steps(rank, ranks, cut(8, chunks), towards)) for rank in range(ranks)]
    for rank, plan in enumerate(plans):
        assert len(plan) == (ranks - 1) * chunks
        for i, step in enumerate(plan):
            assert plans[step.target][i].source == rank
            assert plans[step.target][i].chunk == step.chunk
