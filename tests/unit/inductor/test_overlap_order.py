"""The order that the overlap scheduler finds is the order in which generated code calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code, run_fw_bw_and_get_code

from counterpoint.capture.world import fake_world
from counterpoint.report.history import reports

C10D = torch.ops._c10d_functional
CALLS = re.compile(
    r"(all_gather_into_tensor|reduce_scatter_tensor|all_reduce|wait_tensor|extern_kernels\.mm)\w*(?:\.default)?\("
)
LINKS = {"latency_us": 50.0, "bandwidth_gbps": 10.0}


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with fake_world(2):
        yield


def two_layers(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """As it is written, each gather is waited for before the next starts, and the reduction before the last product."""
    first = w @ C10D.wait_tensor(C10D.all_gather_into_tensor(x, 2, "0"))
    scattered = C10D.wait_tensor(C10D.reduce_scatter_tensor(first, "sum", 2, "0"))
    second = C10D.wait_tensor(C10D.all_gather_into_tensor(y, 2, "0"))
    return first @ second, scattered


def calls(**options: object) -> list[str]:
    """What generated code calls, in order."""
    torch.compiler.reset()
    compiled = torch.compile(two_layers, backend="counterpoint", options=options)
    _, (code, *_) = run_and_get_code(compiled, torch.ones(128, 256), torch.ones(128, 256), torch.ones(256, 256))
    return called(code)


def called(code: str) -> list[str]:
    body = "\n".join(line.partition("#")[0] for line in code[code.index("def call") :].splitlines())
    return [name.rpartition(".")[2] for name in CALLS.findall(body)]


class SummedBackward(torch.autograd.Function):
    """What tensor parallel does in front of a layer: nothing, and in the backward the sum over all ranks."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        summed: Tensor = C10D.wait_tensor(C10D.all_reduce(gradient.contiguous(), "sum", "0"))
        return summed


def chain(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        x = SummedBackward.apply(x) @ weight
    return x.sum()


def backward_calls(passes: str) -> list[str]:
    """What the generated backward calls, in order."""
    torch.compiler.reset()
    compiled = torch.compile(chain, backend="counterpoint", options={"passes": passes, **LINKS})
    x, *weights = (torch.ones(256, 256, requires_grad=True) for _ in range(4))
    _, codes = run_fw_bw_and_get_code(lambda: compiled(x, *weights))
    return next(calls for calls in map(called, codes) if "all_reduce" in calls)


# torch's own tracing makes an instance of the function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_products_that_were_put_beside_exchanges_stay_there_in_a_generated_backward() -> None:
    moved = backward_calls("schedule-overlap{bucket=false}")
    kept = backward_calls("schedule-overlap{bucket=false move-compute=false}")
    assert sorted(moved) == sorted(kept)
    assert beside(moved) == 3 > beside(kept)


def beside(calls: list[str]) -> int:
    """How many exchanges have a product between their start and their wait."""
    pairs = re.findall(r"all_reduce((?: mm)*) wait_tensor", " ".join(calls))
    return sum("mm" in between for between in pairs)


def test_generated_code_keeps_the_order_of_the_schedule() -> None:
    gather, scatter, wait, mm = "all_gather_into_tensor", "reduce_scatter_tensor", "wait_tensor", "mm"
    found = calls(passes="schedule-overlap{bucket=false}", **LINKS)
    assert found == [gather, gather, wait, mm, scatter, wait, mm, wait]
    assert "reorder_for_peak_memory=False" in reports()[-1].in_force["fences"]
