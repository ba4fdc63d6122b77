"""What else is checked of the pipelined operators on real ranks: scaled forms, gradients of averages, `opcheck`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint.ir.pipelined import OPS
from tests.support.pipelined_cases import (
    Draw,
    ScatterCase,
    differences,
    gathered,
    gradients,
    scattered,
    settle,
    world,
)
from tests.support.toolchain import missing_for_row_scales

SCALED_MM = torch.ops.aten._scaled_mm.default
ALL_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
E4M3 = torch.float8_e4m3fn
F32, BF16 = torch.float32, torch.bfloat16


class _Scaled:
    """Operands of scaled matmuls on this rank. Scales are powers of two, so that nothing is rounded."""

    def __init__(self) -> None:
        self.draw = Draw(E4M3)
        self.ranks, self.group = world()

    def rows(self, *shape: int) -> Tensor:
        """Left operand."""
        return self.draw.plain(shape)

    def columns(self, inner: int, count: int) -> Tensor:
        """Right operand, column by column in memory."""
        return self.draw.plain((count, inner)).t()

    def scale(self, *shape: int) -> Tensor:
        """Powers of two."""
        return torch.exp2(self.draw.plain(shape).float())


def plain_scaled(left: Tensor, right: Tensor, scale: Tensor, other: Tensor, bias: Any, dtype: Any) -> Tensor:
    """The scaled matmul of all rows."""
    rows = left.reshape(-1, left.shape[-1])
    product = SCALED_MM(rows, right, scale if scale.numel() == 1 else scale.reshape(-1, 1), other, bias, None, dtype)
    return product.view(*left.shape[:-1], right.shape[-1])


def check_scaled_gathers(lowering: str, rowwise: bool) -> list[str]:
    """Scales by tensor, or by rows of the shard and by all rows; two and three dims; several products."""
    settle(lowering)
    lines: list[str] = []
    for shape, dim in (((6, 32), 0), ((3, 5, 32), 1), ((3, 5, 32), 0), ((6, 32), 1)):
        s = _Scaled()
        shard = s.rows(*shape)
        inner = shape[-1] * (s.ranks if dim == len(shape) - 1 else 1)
        others = [s.columns(inner, 16), s.columns(inner, 48)]
        whole = gathered(shard, dim)
        by_row = [(s.scale(*shape[:-1], 1), True), (s.scale(*whole.shape[:-1], 1), False)]
        for scale, travels in (by_row if dim < len(shape) - 1 else []) if rowwise else [(s.scale(), False)]:
            scales = [s.scale() if scale.numel() == 1 else s.scale(1, o.shape[1]) for o in others]
            used = gathered(scale, dim) if travels else scale
            expected = [
                plain_scaled(whole, o, used, other, None, dtype)
                for o, other, dtype in zip(others, scales, (F32, BF16), strict=True)
            ]
            none, settings = [None, None], (dim, 2, s.ranks, s.group, True)
            found = OPS.all_gather_scaled_matmul.default(
                shard, scale, others, scales, none, none, [F32, BF16], [False, False], *settings
            )
            pairs = zip([*expected, whole], found, strict=True)
            lines += [line for i, (one, other) in enumerate(pairs) for line in differences(i, _wide(one), _wide(other))]
    return lines


def _wide(value: Tensor) -> Tensor:
    return value.float() if value.dtype is E4M3 else value


def check_scaled_scatters(lowering: str, rowwise: bool) -> list[str]:
    """Scales by tensor or by row and column; sums of two products; both dims."""
    settle(lowering)
    lines: list[str] = []
    for dim in (0, 1):
        s = _Scaled()
        rows, columns = 6 * s.ranks, 16 * s.ranks
        lefts, rights = [s.rows(rows, 32), s.rows(rows, 16)], [s.columns(32, columns), s.columns(16, columns)]
        left_scales = [s.scale(rows, 1) if rowwise else s.scale() for _ in lefts]
        right_scales = [s.scale(1, columns) if rowwise else s.scale() for _ in rights]
        bias = s.draw.plain((columns,)).to(F32)
        operands = zip(lefts, rights, left_scales, right_scales, strict=True)
        total = sum(plain_scaled(*four, None, F32) for four in operands) + bias
        found = OPS.scaled_matmul_reduce_scatter.default(
            lefts,
            rights,
            left_scales,
            right_scales,
            bias,
            *(None, "sum", dim, False, 3, s.ranks, s.group, F32),
        )
        lines += differences(dim, scattered(total, dim, "sum"), found)
    return lines


def check_average_gradients(cases: list[ScatterCase], averages: list[ScatterCase]) -> list[str]:
    """The gradients of an average are those of the sum, divided by the number of ranks."""
    settle("messages")
    lines: list[str] = []
    for case, average in zip(cases, averages, strict=True):
        for i, (one, other) in enumerate(zip(gradients(case, True), gradients(average, True), strict=True)):
            lines += differences(i, one / dist.get_world_size(), other, strides=False)
    return lines


def opcheck_all() -> dict[str, dict[str, str]]:
    """Torch's own checks of each operator: schema, fake kernel, autograd registration, ahead-of-time dispatch."""
    settle("messages")
    ranks, group = world()
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    bias = torch.randn(4, requires_grad=True)
    s = _Scaled()
    a, b = s.rows(4, 32), s.columns(32, 16)
    sa, sb = (s.scale(), s.scale()) if missing_for_row_scales() else (s.scale(4, 1), s.scale(1, 16))
    how = (0, 2, ranks, group)
    calls: dict[Any, tuple[Any, ...]] = {
        OPS.all_gather_matmul.default: (x, [w], [bias], [F32], 0, True, *how[1:], True),
        OPS.matmul_reduce_scatter.default: ([x], [w], bias, "sum", *how, BF16),
        OPS.matmul_all_reduce.default: ([x], [w], bias, "avg", 2, group, None),
        OPS.all_to_all_matmul.default: (x, [w], [bias], [F32], *how[1:], True),
        OPS.matmul_all_to_all.default: ([x], [w], bias, *how[1:], None),
        OPS.all_gather_scaled_matmul.default: (a, sa, [b], [sb], [None], [None], [F32], [False], *how, False),
        OPS.scaled_matmul_reduce_scatter.default: (
            *([a], [b], [sa], [sb], None, None, "sum", 0, False),
            *(*how[1:], F32),
        ),
    }
    # Torch's checker of schemas reads no lists of optional tensors and no eight-bit floats.
    found = {}
    for op, arguments in calls.items():
        checks = ALL_CHECKS if op.name().startswith("counterpoint::matmul") else ALL_CHECKS[1:]
        found[op.name()] = torch.library.opcheck(op, arguments, test_utils=checks)
    return found
