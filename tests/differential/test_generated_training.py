"""Generated code on real ranks, for what plain calls are tested with too: sizes that change, graph breaks, recomputing,
inference, several modules in one process, groups inside groups.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn

from counterpoint import replicate
from counterpoint.report.history import reports
from tests.differential.test_backend import (
    INDUCTOR,
    Checkpointed,
    Mlp,
    accounted,
    assert_trains_alike,
    compiled,
    job_hybrid,
    own_data,
    whole_numbered,
)

pytestmark = pytest.mark.cxx


class Broken(nn.Module):
    """Two graphs with a break between them; the second computes its inner values again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = replicate(whole_numbered(Mlp()))
        self.second = replicate(whole_numbered(Checkpointed()))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        torch._dynamo.graph_break()
        return self.second(hidden)


class Plain(nn.Module):
    """The same without us."""

    def __init__(self) -> None:
        super().__init__()
        self.first = whole_numbered(Mlp())
        self.second = whole_numbered(Mlp())

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def rows_of(step: int) -> Tensor:
    """Another size each step."""
    return own_data(step, rows=4 + 2 * step)


def job_breaks_sizes_and_inference() -> tuple[list[tuple[str, int]], int]:
    """Trains on batches of two sizes, then infers; a second compiled module lives beside the first."""
    model, reference = Broken(), nn.parallel.DistributedDataParallel(Plain())
    step = compiled(model, INDUCTOR, dynamic=True)
    assert_trains_alike(step, model, reference, rows_of)
    trained = accounted()
    with torch.no_grad():
        assert torch.equal(step(rows_of(2)), reference.module(rows_of(2)))
    other, alone = replicate(whole_numbered(Mlp())), nn.parallel.DistributedDataParallel(whole_numbered(Mlp()))
    assert_trains_alike(torch.compile(other, backend="counterpoint", options=INDUCTOR | {"passes": ""}), other, alone)
    assert_trains_alike(step, model, reference, rows_of)
    dist.barrier()
    return trained, sum(record.role == "inference" for record in reports())


def test_sizes_breaks_recomputing_and_inference_together(ranks: Any) -> None:
    for trained, inferred in ranks(2).run(job_breaks_sizes_and_inference, reset_compiler=True):
        # One graph on each side of the break, for all sizes.
        assert sorted(role for role, _ in trained) == ["backward"] * 2 + ["forward"] * 2
        assert [count for role, count in trained if role == "backward"] == [2, 2]
        assert inferred == 2


def test_groups_inside_groups(ranks: Any) -> None:
    accounts = ranks(4).run(job_hybrid, INDUCTOR, reset_compiler=True)
    assert all(dict(account)["backward"] > 2 for account in accounts)
