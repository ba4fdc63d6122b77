"""The reference semantics against real gloo ranks, on generated graphs: what we call right is what torch does."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from counterpoint.ir.evaluate import evaluate
from tests.support.compare import run_graph
from tests.support.gloo import Ranks
from tests.support.strategies import GROUPS, Case, distributed_graphs

PARTITIONS = {
    2: {"world": (0, 1)},
    4: {"world": (0, 1, 2, 3), "near": ((0, 1), (2, 3)), "far": ((0, 2), (1, 3))},
}


@pytest.mark.parametrize("world_size", [2, 4])
def test_simulated_ranks_agree_with_gloo(ranks: Callable[[int], Ranks], world_size: int) -> None:
    workers = ranks(world_size)
    assert set(PARTITIONS[world_size]) == set(GROUPS[world_size])

    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    @given(distributed_graphs(world_sizes=(world_size,), moved_only=False, symbolic=False))
    def agree(case: Case) -> None:
        simulated = evaluate(case.gm, case.inputs, case.groups)
        real = run_graph(workers, case.gm, case.inputs, PARTITIONS[world_size])
        for rank, run in enumerate(real):
            for value, expected in zip(run.outputs, simulated[rank], strict=True):
                assert torch.equal(value, expected), f"rank {rank}\n{case.gm.graph}"

    agree()
