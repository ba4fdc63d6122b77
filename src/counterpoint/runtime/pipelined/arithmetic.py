"""Products that are written where they belong, which may be a part of a larger tensor."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

_SCALED = torch.ops.aten._scaled_mm.default
_FEW = 16
"""Up to so many matrices are multiplied one by one to spare a copy of their products."""
_NARROW = (torch.float16, torch.bfloat16)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums of parts are kept in, so that adding many of them loses no more than adding once."""
    return torch.float32 if dtype in _NARROW else dtype


def multiply_into(out: Tensor, left: Tensor, right: Tensor, bias: Tensor | None = None) -> None:
    """`out = left @ right + bias`, converted to the dtype of `out`."""
    if out.numel() == 0:
        return
    if out.dtype != left.dtype:
        product = left.new_empty(out.shape)
        multiply_into(product, left, right, bias)
        out.copy_(product)
    elif left.dim() == right.dim() == 2:
        _matrix_into(out, left, right, bias)
    elif right.dim() == 2:
        _rows_into(out, left, right, bias)
    elif left.dim() == right.dim() == 3:
        torch.bmm(left, right, out=out)
        if bias is not None:
            out.add_(bias)
    else:
        product = torch.matmul(left, right)
        out.copy_(product if bias is None else product.add_(bias))


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """`total += left @ right`."""
    if total.dtype == left.dtype and left.dim() == right.dim() == 2 and total.numel():
        total.addmm_(left, right)
    else:
        total.add_(torch.matmul(left, right))


def _matrix_into(out: Tensor, left: Tensor, right: Tensor, bias: Tensor | None) -> None:
    if bias is None:
        torch.mm(left, right, out=out)
    else:
        torch.addmm(bias, left, right, out=out)


def _rows_into(out: Tensor, left: Tensor, right: Tensor, bias: Tensor | None) -> None:
    """Many left matrices and one right one: as one product where the results lie in a row."""
    same_for_all = bias is None or bias.dim() < 2
    if out.is_contiguous() and same_for_all:
        _matrix_into(out.view(-1, out.shape[-1]), left.reshape(-1, left.shape[-1]), right, bias)
    elif prod(out.shape[:-2]) <= _FEW:
        for i in range(out.shape[0]):
            own = bias
            if bias is not None and bias.dim() == out.dim():
                own = bias[0 if bias.shape[0] == 1 else i]
            multiply_into(out[i], left[i], right, own)
    else:
        product = torch.mm(left.reshape(-1, left.shape[-1]), right).view(out.shape)
        out.copy_(product if bias is None else product.add_(bias))


def multiply_scaled_into(
    out: Tensor,
    left: tuple[Tensor, Tensor],
    right: tuple[Tensor, Tensor],
    bias: Tensor | None,
    result_scale: Tensor | None,
    fast_accum: bool,
) -> None:
    """The scaled matmul of rows of eight-bit numbers, each operand with its scale."""
    if out.numel() == 0:
        return
    (rows, scale), (columns, column_scale) = left, right
    if scale.numel() != 1:
        scale = scale.reshape(-1, 1)
    flat = rows.reshape(-1, rows.shape[-1])
    product = _SCALED(flat, columns, scale, column_scale, bias, result_scale, out.dtype, fast_accum)
    out.copy_(product.view(out.shape))


def as_sent(tensor: Tensor) -> Tensor:
    """The tensor in an element type that every backend sends: eight-bit floats travel as bytes."""
    return tensor.view(torch.uint8) if tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1 else tensor


def part(tensor: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A part along a dim counted from the end; all of a tensor that has no such dim, or one size for all there."""
    if tensor.dim() < -dim or tensor.shape[dim] == 1:
        return tensor
    return tensor.narrow(dim, start, length)
