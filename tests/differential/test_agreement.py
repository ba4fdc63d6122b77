"""Real ranks that would run different graphs hear of it before they hang; those that agree, or may differ, go on."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn

from counterpoint.errors import CounterpointError
from counterpoint.report.history import clear_reports, reports
from tests.support.gloo import PerRank, RanksByWorldSize


class Net(nn.Module):
    """Sums over the ranks in the forward and in the backward."""

    def __init__(self, collectives: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.collectives = collectives
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        for _ in range(self.collectives):
            y = funcol.all_reduce(y.sum(0) / 2, "sum", dist.group.WORLD) + y
        return y.sum()


def run(
    options: dict[str, Any], collectives: int = 1, rows: tuple[int, ...] = (3,), train: bool = True
) -> list[float] | str:
    """Train on batches of these sizes; the losses, or what was raised."""
    torch.compiler.reset()
    model = Net(collectives)
    step = torch.compile(model, backend="counterpoint", options={"codegen": "eager", **options})
    losses = []
    try:
        for count in rows:
            with torch.set_grad_enabled(train):
                loss = step(torch.ones(count, 4))
            if train:
                loss.backward()
            losses.append(round(float(loss), 3))
    except CounterpointError as error:
        return f"{type(error).__name__}: {error}"
    return losses


def compiled_twice(cache: str) -> list[tuple[str, list[float] | str]]:
    """The same graphs compiled, and then found in the cache; on rank 1 the cache is always empty."""
    found = []
    for attempt in ("first", "second"):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{cache}/{attempt if dist.get_rank() else 'kept'}"
        clear_reports()
        losses = run({"codegen": "inductor"}, train=False)
        found.append((reports()[0].cache, losses))
    return found


def test_ranks_that_compile_alike_train(ranks: RanksByWorldSize) -> None:
    one, other = ranks(2).run(run, {})
    assert one == other
    assert isinstance(one, list)


def test_another_number_of_collectives_is_an_error_on_both_ranks(ranks: RanksByWorldSize) -> None:
    heard = ranks(2).run(run, {}, PerRank([1, 2]))
    assert len(set(heard)) == 1
    assert heard[0].startswith("AgreementError: rank 1 would run other collectives than rank 0: number 2 is all_reduce")
    assert "and none on rank 0 [graph 0/0 forward]" in heard[0]


def test_other_options_are_an_error_on_both_ranks(ranks: RanksByWorldSize) -> None:
    heard = ranks(2).run(run, PerRank([{}, {"bitwise": True}]))
    assert len(set(heard)) == 1
    assert "the options is " in heard[0]
    assert "bitwise" in heard[0]


def test_a_rank_that_compiles_again_for_its_own_sizes_asks_nobody(ranks: RanksByWorldSize) -> None:
    """With dynamic shapes off, each new size is another graph, and rank 1 has one more than rank 0."""
    found = ranks(2).run(run, {"agreement_s": 20.0}, 1, PerRank([(3, 3, 3), (3, 5, 3)]))
    assert all(isinstance(losses, list) and len(losses) == 3 for losses in found)


@pytest.mark.cxx
def test_a_cache_hit_and_a_miss_agree(ranks: RanksByWorldSize, tmp_path: object) -> None:
    (first, second), (other_first, other_second) = ranks(2).run(compiled_twice, str(tmp_path))
    assert (first[0], second[0]) == ("miss", "hit")
    assert (other_first[0], other_second[0]) == ("miss", "miss")
    assert first[1] == second[1] == other_first[1] == other_second[1]
