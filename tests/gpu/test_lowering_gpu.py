"""Lowered all-reduces on symmetric memory: several ranks on one GPU get the sums, also through compiled programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.support.gpu_sums import wrong_sums
from tests.support.one_gpu import multi_process_service, run_on_one_gpu

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def shared_gpu() -> Iterator[dict[str, str]]:
    with multi_process_service() as environment:
        yield environment


@pytest.mark.parametrize("ranks", [2, 4])
def test_sums(shared_gpu: dict[str, str], ranks: int) -> None:
    assert run_on_one_gpu(wrong_sums, ranks=ranks, environment=shared_gpu) == [[]] * ranks


def compiled(codegen: str) -> tuple[bool, list[str]]:
    """Whether a compiled program gives what eager mode does, and the forms that were chosen."""
    import torch.distributed as dist

    from counterpoint.report.history import reports

    c10d, name = torch.ops._c10d_functional, dist.group.WORLD.group_name

    def program(x: Tensor, w: Tensor) -> Tensor:
        summed = c10d.wait_tensor(c10d.all_reduce(x @ w, "sum", name))
        return c10d.wait_tensor(c10d.all_reduce(summed @ w, "sum", name)) + x

    x, w = (torch.randint(-2, 3, (16, 16), device="cuda").float() for _ in range(2))
    options = {"passes": "lower-collectives", "codegen": codegen, "on_error": "raise"}
    run = torch.compile(program, backend="counterpoint", options=options)
    same = all(torch.equal(run(x, w), program(x, w)) for _ in range(2))
    return same, [entry.verdict.partner for entry in reports()[0].ledgers[0]]


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_a_compiled_program(shared_gpu: dict[str, str], codegen: str) -> None:
    found = run_on_one_gpu(compiled, codegen, ranks=2, environment=shared_gpu)
    assert found == [(True, ["one-shot, in place", "one-shot, in place"])] * 2
