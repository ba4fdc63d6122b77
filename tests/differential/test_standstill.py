"""A rank that stays away from a collective of a compiled graph is named by those that wait, with node and bucket."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor

from counterpoint.errors import CounterpointError
from tests.support.gloo import RanksByWorldSize

TIMEOUT_S = 3.0
"""Of the groups below: what a rank waits before its collective fails."""


def two_sums(x: Tensor, group: Any) -> Tensor:
    one = funcol.all_reduce(x * 2, "sum", group)
    return one + funcol.all_reduce(x + 1, "sum", group)


def gathered(x: Tensor, group: Any) -> Tensor:
    return funcol.all_gather_tensor(x + 1, 0, group) * 2


def compiled(function: Any, codegen: str, **options: Any) -> Any:
    return torch.compile(function, backend="counterpoint", options={"codegen": codegen, **options})


def said(step: Any, *args: Any) -> str:
    try:
        step(*args)
    except (CounterpointError, RuntimeError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return "went well"


@torch.no_grad()
def stay_away(codegen: str, passes: str) -> str:
    """Both ranks run a graph once; then rank 1 does not come."""
    torch.compiler.reset()
    group = dist.new_group([0, 1], timeout=timedelta(seconds=TIMEOUT_S))
    step = compiled(two_sums, codegen, passes=passes)
    step(torch.ones(4), group)
    return said(step, torch.ones(4), group) if dist.get_rank() == 0 else "stayed away"


@torch.no_grad()
def go_elsewhere() -> str:
    """Both ranks run two graphs; then each runs another one."""
    torch.compiler.reset()
    group = dist.new_group([0, 1], timeout=timedelta(seconds=TIMEOUT_S))
    steps = [compiled(function, "eager", passes="") for function in (two_sums, gathered)]
    for step in steps:
        step(torch.ones(4), group)
    return said(steps[dist.get_rank()], torch.ones(4), group)


@torch.no_grad()
def fail_by_itself() -> str:
    """A graph with a collective that goes well, and an error of the user's own."""
    torch.compiler.reset()

    def step(x: Tensor, index: Tensor) -> Tensor:
        return funcol.all_reduce(x, "sum", dist.group.WORLD)[index]

    return said(compiled(step, "eager"), torch.ones(4), torch.tensor([9]))


@pytest.mark.parametrize("codegen", ["eager", pytest.param("inductor", marks=pytest.mark.cxx)])
def test_the_missing_rank_the_node_and_the_bucket_are_named(ranks: RanksByWorldSize, codegen: str) -> None:
    heard, away = ranks(2).run(stay_away, codegen, "bucket-all-reduce")
    assert away == "stayed away"
    assert heard.startswith("CommunicationError: rank 1 did not come to all_reduce sum float32 8 at node all_reduce_")
    assert "(all_reduce bucket 0 of 2: inference/all_reduce#0 at " in heard
    assert "inference/all_reduce#1 at " in heard
    assert "test_standstill.py:" in heard
    assert "where rank 0 waits" in heard
    assert "Timed out" in heard
    assert "next step: look at the log of rank 1" in heard


@pytest.mark.cxx
def test_a_bucket_in_shared_memory_is_named_too(ranks: RanksByWorldSize) -> None:
    heard, _ = ranks(2).run(stay_away, "eager", "bucket-all-reduce,lower-collectives")
    assert heard.startswith("SharedMemoryError: rank 1 did not come to all_reduce sum float32 8 ")
    assert "(all_reduce bucket 0 of 2: inference/all_reduce#0 at " in heard


def test_ranks_in_different_collectives_hear_of_each_other(ranks: RanksByWorldSize) -> None:
    first, second = ranks(2).run(go_elsewhere)
    assert "ranks wait for each other in different collectives: rank 0 in all_reduce sum float32 4 at node" in first
    assert "rank 1 stands in all_gather float32 4 at node" in first
    assert "rank 1 in all_gather float32 4" in second


def test_an_error_of_the_users_own_is_left_alone(ranks: RanksByWorldSize) -> None:
    for heard in ranks(2).run(fail_by_itself):
        assert heard.startswith(("IndexError", "RuntimeError"))
        assert "out of bounds" in heard
