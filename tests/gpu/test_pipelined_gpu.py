"""The pipelined operators on symmetric memory: several ranks on one GPU compute what the plain sequence computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch

from counterpoint.runtime.pipelined import torch_fused
from counterpoint.runtime.probe import PROBES
from tests.differential.test_pipelined import gather_cases, scatter_cases, sized_gather_cases
from tests.support.one_gpu import multi_process_service, run_on_one_gpu
from tests.support.pipelined_cases import GatherCase, ScatterCase, check_all

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def shared_gpu() -> Iterator[dict[str, str]]:
    with multi_process_service() as environment:
        yield environment


def probed() -> tuple[bool, str]:
    """What the ranks find about symmetric memory."""
    import torch.distributed as dist

    found = PROBES.of(dist.group.WORLD, torch.device("cuda", 0)).symmetric_memory
    return found.available, found.reason


def check_ours(cases: list[Any]) -> dict[str, list[str]]:
    """Our own copies, also where torch's operator could run the call."""
    with (
        mock.patch.object(torch_fused, "torch_gather_obstacle", return_value="not in this test"),
        mock.patch.object(torch_fused, "torch_scatter_obstacle", return_value="not in this test"),
    ):
        return check_all(cases, "symmetric_memory", "cuda")


def check_with_torch(cases: list[Any]) -> dict[str, list[str]]:
    """Torch's operator where it can run the call."""
    return check_all(cases, "symmetric_memory", "cuda")


def of_floats(cases: list[Any]) -> list[Any]:
    """Those that travel over symmetric memory: an all-reduce does not, and gloo reduces no average on a GPU."""
    return [case for case in cases if not (isinstance(case, ScatterCase) and case.dim is None)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_symmetric_memory_is_found(shared_gpu: dict[str, str], ranks: int) -> None:
    expected = (True, f"{ranks} ranks map each other's memory")
    assert run_on_one_gpu(probed, ranks=ranks, environment=shared_gpu) == [expected] * ranks


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("check", [check_ours, check_with_torch])
def test_products_and_reductions(shared_gpu: dict[str, str], check: Any, ranks: int) -> None:
    cases = [
        *(case for chunks in (1, 3) for case in gather_cases(chunks) + sized_gather_cases(ranks, chunks)),
        *of_floats(scatter_cases(ranks, 1)),
    ]
    assert any(isinstance(case, GatherCase) for case in cases)
    assert run_on_one_gpu(check, cases, ranks=ranks, environment=shared_gpu) == [{}] * ranks
