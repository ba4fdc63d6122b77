"""Lowered all-reduces on symmetric memory: several ranks on one GPU get the sums, also through compiled programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from counterpoint.ir.shared_memory import OPS
from tests.support.one_gpu import multi_process_service, run_on_one_gpu

pytestmark = pytest.mark.gpu

FORMS = ("shm_one_shot_all_reduce", "shm_two_shot_all_reduce", "shm_all_reduce")
PARTS = {
    "whole": lambda x: x,
    "odd offset": lambda x: x[2:1030],
    "transposed": lambda x: x[:4096].view(64, 64).t(),
    "rows": lambda x: x[:4096].view(64, 64)[:, :16],
    "empty": lambda x: x[:0],
}


@pytest.fixture(scope="module")
def shared_gpu() -> Iterator[dict[str, str]]:
    with multi_process_service() as environment:
        yield environment


def wrong_sums() -> list[str]:
    """Which operators give something else than the sum, in and out of place."""
    import torch.distributed as dist

    from counterpoint.runtime import symmetric_collectives  # noqa: F401  registers what runs

    rank, ranks, name = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.group_name
    base = torch.arange(16 * 1024, device="cuda") % 7
    total = ranks * base + ranks * (ranks - 1) // 2
    wrong = []
    for dtype in (torch.float32, torch.bfloat16):
        for part, take in PARTS.items():
            expected = take(total.to(dtype))
            for form in FORMS:
                mine = take((base + rank).to(dtype))
                given = mine.clone()
                results = [
                    getattr(OPS, form)(mine, "sum", name),
                    getattr(OPS, f"{form}_out")(mine, "sum", name, out=torch.empty_like(expected)),
                    expected + (mine - given),
                    getattr(OPS, f"{form}_")(mine, "sum", name),
                ]
                wrong += [f"{form} {part} {dtype}" for result in results if not torch.equal(result, expected)]
    return wrong


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
