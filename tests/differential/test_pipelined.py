"""The pipelined operators on real ranks compute what the plain sequence of collective and matmul computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.gloo import RankError
from tests.support.pipelined_cases import GatherCase, ScatterCase, check_all, check_gradients
from tests.support.pipelined_checks import (
    check_average_gradients,
    check_scaled_gathers,
    check_scaled_scatters,
    opcheck_all,
)
from tests.support.pipelined_exchanges import check_exchanges
from tests.support.pipelined_failures import killed, stalled
from tests.support.pipelined_stand_in import check_on_stand_in

BF16 = torch.bfloat16


def gather_cases(chunks: int) -> list[Any]:
    """Every dim and every kind of operand. Sizes that no chunk count divides."""
    common = [
        {"shard": (5, 7), "others": ((7, 3),), "dim": 0},
        {"shard": (5, 7), "others": ((7, 3), (7, 4)), "dim": 0, "biases": ((3,), None), "keep": True},
        {"shard": (5, 7), "others": ((7, 3),), "dim": 0, "dtype": BF16, "out_dtypes": (torch.float32,)},
        {"shard": (5, 7), "others": ((7, 3),), "dim": 0, "transposed": True},
        {"shard": (0, 7), "others": ((7, 3),), "dim": 0, "biases": ((3,),), "keep": True},
        {"shard": (1, 7), "others": ((7, 3),), "dim": 0},
        {"shard": (3, 5, 7), "others": ((7, 4),), "dim": 0, "biases": ((4,),)},
        {"shard": (3, 5, 7), "others": ((7, 4), (7, 2)), "dim": 1, "biases": ((4,), None), "keep": True},
        {"shard": (20, 5, 7), "others": ((7, 4),), "dim": -2, "biases": ((4,),)},
        {"shard": (2, 3, 5, 7), "others": ((7, 4),), "dim": 2, "keep": True},
        {"shard": (3, 5, 7), "others": ((3, 7, 4),), "dim": 1, "biases": ((4,),)},
        {"shard": (5, 7), "others": ((3, 7, 4),), "dim": 0},
    ]
    return [GatherCase(chunks=chunks, **fields) for fields in common]


def sized_gather_cases(ranks: int, chunks: int) -> list[Any]:
    """Those where another operand has the size of what is gathered."""
    common = [
        {"shard": (3, 5), "others": ((5 * ranks, 4),), "dim": 1, "biases": ((4,),), "keep": True},
        {"shard": (3, 5), "others": ((5 * ranks, 4),), "dim": 1, "dtype": BF16},
        {"shard": (2, 3, 5), "others": ((5 * ranks, 4),), "dim": 2, "keep": True},
        {"shard": (3, 4, 5), "others": ((3 * ranks, 5, 2),), "dim": 0, "keep": True},
        {"shard": (5, 3), "others": ((4, 5 * ranks),), "dim": 0, "left": False, "keep": True},
        {"shard": (5, 3), "others": ((4, 5),), "dim": 1, "left": False, "biases": ((4, 1),)},
        {"shard": (5, 3), "others": ((2, 4, 5),), "dim": 1, "left": False},
        {"shard": (5, 3), "others": ((4, 5),), "dim": 1, "left": False, "biases": ((3 * ranks,),), "keep": True},
        {"shard": (3, 5, 2), "others": ((3 * ranks, 4, 5),), "dim": 0, "left": False},
        {"shard": (5, 7), "others": ((7, 3),), "biases": ((5 * ranks, 3),), "dim": 0},
    ]
    return [GatherCase(chunks=chunks, **fields) for fields in common]


def scatter_cases(ranks: int, chunks: int) -> list[Any]:
    """Every dim of the product."""
    rows = 5 * ranks
    common = [
        {"lefts": ((rows, 7),), "rights": ((7, 3),)},
        {"lefts": ((rows, 7),), "rights": ((7, 3),), "reduce_op": "avg", "bias": (3,), "dtype": torch.float64},
        {"lefts": ((rows, 7), (rows, 2)), "rights": ((7, 3), (2, 3)), "bias": (rows, 3)},
        {"lefts": ((4, 7), (4, 2)), "rights": ((7, rows), (2, rows)), "dim": 1, "bias": (rows,)},
        {"lefts": ((rows, 7),), "rights": ((7, 3),), "transposed": True},
        {"lefts": ((rows, 7),), "rights": ((7, 3),), "dtype": BF16, "out_dtype": torch.float32},
        {"lefts": ((rows, 7),), "rights": ((7, 3),), "dtype": BF16, "reduce_op": "sum"},
        {"lefts": ((0, 7),), "rights": ((7, 3),)},
        {"lefts": ((3, rows, 7),), "rights": ((7, 2),), "dim": 1, "bias": (2,)},
        {"lefts": ((rows, 3, 7), (rows, 3, 4)), "rights": ((7, 2), (4, 2)), "dim": 0},
        {"lefts": ((2, 3, 7),), "rights": ((7, rows),), "dim": -1},
        {"lefts": ((3, rows, 7),), "rights": ((3, 7, 2),), "dim": 1, "bias": (2,)},
        {"lefts": ((rows, 3, 7),), "rights": ((rows, 7, 2),), "dim": 0},
        {"lefts": ((3, 7),), "rights": ((2, 7, rows),), "dim": 2},
    ]
    reduced = [
        {"lefts": ((11, 7),), "rights": ((7, 3),), "bias": (3,)},
        {"lefts": ((11, 7), (11, 2)), "rights": ((7, 3), (2, 3)), "reduce_op": "avg", "dtype": torch.float64},
        {"lefts": ((3, 11, 7),), "rights": ((7, 2),), "dtype": BF16, "out_dtype": torch.float32},
        {"lefts": ((3, 11, 7),), "rights": ((3, 7, 2),)},
        {"lefts": ((0, 7),), "rights": ((7, 3),)},
        {"lefts": ((1, 7),), "rights": ((7, 3),)},
    ]
    return [
        *(ScatterCase(chunks=chunks, **fields) for fields in common),
        *(ScatterCase(chunks=chunks, dim=None, **fields) for fields in reduced),
    ]


WAYS = [("plain", 1), ("messages", 1), ("messages", 3), ("shared_memory", 1)]
"""Lowerings with numbers of chunks."""


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(("lowering", "chunks"), WAYS)
def test_products_of_what_is_gathered(ranks, world_size: int, lowering: str, chunks: int) -> None:
    cases = gather_cases(chunks) + sized_gather_cases(world_size, chunks)
    assert ranks(world_size).run(check_all, cases, lowering) == [{}] * world_size


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(("lowering", "chunks"), WAYS)
def test_reductions_of_products(ranks, world_size: int, lowering: str, chunks: int) -> None:
    assert ranks(world_size).run(check_all, scatter_cases(world_size, chunks), lowering) == [{}] * world_size


def has_gradient(case: Any) -> bool:
    """Torch's own gradient of a reduction is for sums alone; and what is empty has none."""
    empty = 0 in (case.shard if isinstance(case, GatherCase) else case.lefts[0])
    gaps = len(set(map(type, getattr(case, "biases", None) or ()))) > 1
    return not empty and not gaps and getattr(case, "reduce_op", "sum") == "sum"


@pytest.mark.parametrize("lowering", ["plain", "messages"])
def test_gradients_are_those_of_the_plain_sequence(ranks, lowering: str) -> None:
    cases = [*gather_cases(2), *sized_gather_cases(2, 2), *scatter_cases(2, 2)]
    assert ranks(2).run(check_gradients, [c for c in cases if has_gradient(c)], lowering) == [{}, {}]


def test_gradients_of_averages(ranks) -> None:
    sums = [ScatterCase(lefts=((4, 7),), rights=((7, 3),), bias=(3,), dtype=torch.float64, dim=d) for d in (0, None)]
    averages = [replace(case, reduce_op="avg") for case in sums]
    assert ranks(2).run(check_average_gradients, sums, averages) == [[], []]


@pytest.mark.parametrize("rowwise", [False, pytest.param(True, marks=pytest.mark.row_scales)])
@pytest.mark.parametrize("lowering", ["plain", "messages", "shared_memory"])
@pytest.mark.parametrize("check", [check_scaled_gathers, check_scaled_scatters])
def test_scaled_products(ranks, check: Any, lowering: str, rowwise: bool) -> None:
    assert ranks(2).run(check, lowering, rowwise) == [[], []]


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(("lowering", "chunks"), WAYS)
def test_parts_that_are_exchanged(ranks, world_size: int, lowering: str, chunks: int) -> None:
    assert ranks(world_size).run(check_exchanges, lowering, chunks) == [[]] * world_size


def test_torch_finds_nothing_wrong_with_the_operators(ranks) -> None:
    for found in ranks(2).run(opcheck_all):
        assert {outcome for checks in found.values() for outcome in checks.values()} == {"SUCCESS"}


OPERATORS = [
    "all_gather_matmul",
    "matmul_reduce_scatter",
    "matmul_all_reduce",
    "all_to_all_matmul",
    "matmul_all_to_all",
]


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_rank_that_does_not_come_is_an_error_within_the_timeout(ranks, operator: str) -> None:
    (kind, text), _ = ranks(2).run(stalled, operator, "messages", deadline_s=60)
    assert kind == "CommunicationError"
    assert f"counterpoint::{operator}" in text


@pytest.mark.parametrize("operator", ["all_gather_matmul", "all_to_all_matmul"])
def test_a_rank_that_does_not_come_to_shared_memory_is_an_error_too(ranks, operator: str) -> None:
    (kind, _), _ = ranks(2).run(stalled, operator, "shared_memory", deadline_s=60)
    assert kind == "SharedMemoryError"


@pytest.mark.parametrize(
    ("operator", "lowering", "error"),
    [
        ("all_gather_matmul", "messages", "CommunicationError"),
        ("matmul_reduce_scatter", "messages", "CommunicationError"),
        ("matmul_reduce_scatter", "shared_memory", "SharedMemoryError"),
        ("all_to_all_matmul", "messages", "CommunicationError"),
        ("matmul_all_to_all", "shared_memory", "SharedMemoryError"),
    ],
)
def test_a_rank_that_is_killed_is_an_error_for_the_others(ranks, operator: str, lowering: str, error: str) -> None:
    with pytest.raises(RankError) as caught:
        ranks(2).run(killed, operator, lowering, deadline_s=60)
    assert "exit code -9" in caught.value.failures[1]
    assert error in caught.value.failures[0]


@pytest.mark.parametrize("world_size", [2, 4])
def test_what_is_copied_through_symmetric_memory(ranks, world_size: int) -> None:
    reductions = [case for case in scatter_cases(world_size, 1) if case.dim is not None]
    cases = [*gather_cases(3), *sized_gather_cases(world_size, 2), *reductions]
    assert ranks(world_size).run(check_on_stand_in, cases) == [{}] * world_size
