"""A tensor-parallel layer in eight-bit floats runs in pieces through the backend, on real ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_tensor, reduce_scatter_tensor

from counterpoint._torch import torch_version
from counterpoint.report.history import clear_reports, reports

E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(E4M3).max
DIM, HIDDEN, ROWS = 32, 48, 6
ALWAYS = "micro-pipeline-tp{when=always chunks=4}"


def quantized(value: Tensor, by_row: bool) -> tuple[Tensor, Tensor]:
    """In eight bits, with a scale a row, or one that was fixed before."""
    if by_row:
        scale = value.abs().amax(-1, keepdim=True).float().clamp(min=1e-3) / LARGEST
    else:
        scale = torch.full((), 1 / 16, dtype=torch.float32)
    return (value / scale).clamp(-LARGEST, LARGEST).to(E4M3), scale


class Layer(nn.Module):
    """The first matrix is cut by columns, the second by rows; the sequence is gathered before and scattered behind."""

    def __init__(self, dim: int, by_row: bool) -> None:
        super().__init__()
        self.dim, self.by_row, self.group = dim, by_row, dist.group.WORLD
        generator = torch.Generator().manual_seed(dist.get_rank())
        for name, shape in (("up", (HIDDEN, DIM)), ("down", (DIM, HIDDEN))):
            weight, scale = quantized(torch.randn(shape, generator=generator), by_row)
            self.register_buffer(name, weight)
            self.register_buffer(f"{name}_scale", scale.t().contiguous() if by_row else scale)

    def multiplied(self, value: Tensor, scale: Tensor, name: str) -> Tensor:
        weight, other = getattr(self, name), getattr(self, f"{name}_scale")
        rows, by_row = value.reshape(-1, value.shape[-1]), scale.reshape(-1, 1) if self.by_row else scale
        product = torch._scaled_mm(rows, weight.t(), by_row, other, out_dtype=torch.bfloat16)
        return product.view(*value.shape[:-1], weight.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        part, scale = quantized(x, self.by_row)
        # Backends know no eight-bit floats, so they travel as bytes.
        whole = all_gather_tensor(part.view(torch.uint8), self.dim, self.group).view(E4M3)
        if self.by_row:
            scale = all_gather_tensor(scale, self.dim, self.group)
        hidden = self.multiplied(whole, scale, "up").relu()
        return reduce_scatter_tensor(
            self.multiplied(*quantized(hidden, self.by_row), "down"), "sum", self.dim, self.group
        )


def job_layer(dim: int, by_row: bool, options: dict[str, Any]) -> tuple[list[str], float]:
    """Verdicts, and by how much the compiled layer differs from eager mode, measured by its largest number."""
    layer = Layer(dim, by_row)
    generator = torch.Generator().manual_seed(7 + dist.get_rank())
    x = torch.randn((ROWS, DIM) if dim == 0 else (2, ROWS, DIM), generator=generator, dtype=torch.bfloat16)
    torch._dynamo.reset()
    clear_reports()
    compiled = torch.compile(layer, backend="counterpoint", options=options, fullgraph=True)
    with torch.no_grad():
        ours, eager = compiled(x).float(), layer(x).float()
    assert all(record.problems == () for record in reports())
    kinds = [entry.verdict.kind.value for record in reports() for ledger in record.ledgers for entry in ledger]
    return kinds, ((ours - eager).abs().max() / eager.abs().max()).item()


untraceable = pytest.mark.skipif(torch_version() < (2, 13), reason="dynamo traces torch's gather of dim 1 from 2.13 on")


@pytest.mark.parametrize("dim", [0, pytest.param(1, marks=untraceable)])
@pytest.mark.parametrize("by_row", [False, pytest.param(True, marks=pytest.mark.row_scales)])
def test_scaled_products_are_pipelined_and_right(ranks: Any, dim: int, by_row: bool) -> None:
    options = {"codegen": "eager", "on_error": "raise", "verify": "full", "passes": ALWAYS}
    for kinds, worst in ranks(2).run(job_layer, dim, by_row, options):
        # Row scales are gathered too, and travel with their tensor.
        assert kinds == ["pipelined"] * (3 if by_row else 2)
        assert worst < 1e-2
