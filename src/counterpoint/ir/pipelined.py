"""Operators that overlap a matmul with the collective before or behind it: what they are called, take and give.

    all_gather_matmul            gather a shard along a dim, multiply what was gathered with one or more matrices
    all_gather_scaled_matmul     the same with scaled matmuls
    matmul_reduce_scatter        the sum of one or more products, reduced over the group and scattered along a dim
    scaled_matmul_reduce_scatter the same with scaled matmuls
    matmul_all_reduce            the sum of one or more products, reduced over the group
    all_to_all_matmul            exchange equal parts along dim 0, multiply what came with one or more matrices
    matmul_all_to_all            the sum of one or more products, its parts along dim 0 exchanged

What holds for all of them:

- They compute what the plain sequence computes: the collective and `torch.matmul`, with the operands as they are given.
  Sums of products may be added up in another order.
- Every result is contiguous, as the plain sequence leaves it, and shares no storage with an argument.
- They are complete when they return; there is no wait.
- `out_dtypes` is the dtype of each product, `out_dtype` that of the sum as it travels; None is the operands' own.
- `chunks` is how many pieces each rank's part is cut into while it travels. It changes no value, need not divide
  anything, and may be larger than what there is to cut.
- Operands have two dims or more. Either one of the two has two, or both have the same leading dims.
- `reduce_op` is `sum` or `avg`.
- No argument depends on the rank.

They live here, beside the other things that a graph may hold. `counterpoint.runtime.pipelined` runs them; shapes are
computed without a process group, which is why those that gather or scatter are told the size of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from counterpoint._torch import register_fake_kernel
from counterpoint.errors import OperatorError
from counterpoint.ir.products import check_lists, gathered_shape, product_shape, scattered_shape

REDUCE_OPS = ("sum", "avg")

_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_GROUP = "int chunks, int group_size, str group_name"


def check_reduce_op(operator: str, reduce_op: str) -> None:
    """Products are pipelined by adding parts, so only sums and averages can be."""
    if reduce_op not in REDUCE_OPS:
        raise OperatorError(
            f"reduce_op {reduce_op!r} cannot be pipelined with a matmul; {' and '.join(REDUCE_OPS)} can",
            where=f"counterpoint::{operator}",
            next_step="keep the matmul and the collective apart",
        )


# -- what they would compute, on fake tensors -------------------------------------------------------------------------


def _fake_all_gather_matmul(
    shard: Tensor,
    others: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    out_dtypes: Sequence[torch.dtype],
    gather_dim: int,
    gathered_left: bool,
    chunks: int,
    group_size: int,
    group_name: str,
    keep_gathered: bool,
) -> list[Tensor]:
    check_lists("all_gather_matmul", len(others), biases=biases, out_dtypes=out_dtypes)
    shape = gathered_shape(shard.shape, gather_dim, group_size)
    results = []
    for other, dtype in zip(others, out_dtypes, strict=True):
        operands = (shape, other.shape) if gathered_left else (other.shape, shape)
        results.append(shard.new_empty(product_shape(*operands), dtype=dtype))
    return [*results, shard.new_empty(shape)] if keep_gathered else results


def _fake_all_gather_scaled_matmul(
    shard: Tensor,
    shard_scale: Tensor,
    others: Sequence[Tensor],
    scales: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    result_scales: Sequence[Tensor | None],
    out_dtypes: Sequence[torch.dtype],
    fast_accum: Sequence[bool],
    gather_dim: int,
    chunks: int,
    group_size: int,
    group_name: str,
    keep_gathered: bool,
) -> list[Tensor]:
    check_lists(
        "all_gather_scaled_matmul",
        len(others),
        scales=scales,
        biases=biases,
        result_scales=result_scales,
        out_dtypes=out_dtypes,
        fast_accum=fast_accum,
    )
    return _fake_all_gather_matmul(
        shard, others, biases, out_dtypes, gather_dim, True, chunks, group_size, group_name, keep_gathered
    )


def _partial(
    operator: str, lefts: Sequence[Tensor], rights: Sequence[Tensor], reduce_op: str, dtype: torch.dtype | None
) -> tuple[list[Any], torch.dtype]:
    """Shape and dtype of the sum of products."""
    check_reduce_op(operator, reduce_op)
    check_lists(operator, len(lefts), rights=rights)
    if not lefts:
        raise OperatorError("there is no product to add up", where=f"counterpoint::{operator}")
    return product_shape(lefts[0].shape, rights[0].shape), dtype or lefts[0].dtype


def _fake_matmul_reduce_scatter(
    lefts: Sequence[Tensor],
    rights: Sequence[Tensor],
    bias: Tensor | None,
    reduce_op: str,
    scatter_dim: int,
    chunks: int,
    group_size: int,
    group_name: str,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    shape, dtype = _partial("matmul_reduce_scatter", lefts, rights, reduce_op, out_dtype)
    return lefts[0].new_empty(scattered_shape(shape, scatter_dim, group_size), dtype=dtype)


def _fake_scaled_matmul_reduce_scatter(
    lefts: Sequence[Tensor],
    rights: Sequence[Tensor],
    left_scales: Sequence[Tensor],
    right_scales: Sequence[Tensor],
    bias: Tensor | None,
    result_scale: Tensor | None,
    reduce_op: str,
    scatter_dim: int,
    fast_accum: bool,
    chunks: int,
    group_size: int,
    group_name: str,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    operator = "scaled_matmul_reduce_scatter"
    check_lists(operator, len(lefts), left_scales=left_scales, right_scales=right_scales)
    shape, dtype = _partial(operator, lefts, rights, reduce_op, out_dtype)
    return lefts[0].new_empty(scattered_shape(shape, scatter_dim, group_size), dtype=dtype)


def _fake_matmul_all_reduce(
    lefts: Sequence[Tensor],
    rights: Sequence[Tensor],
    bias: Tensor | None,
    reduce_op: str,
    chunks: int,
    group_name: str,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    shape, dtype = _partial("matmul_all_reduce", lefts, rights, reduce_op, out_dtype)
    return lefts[0].new_empty(shape, dtype=dtype)


def _fake_all_to_all_matmul(
    tensor: Tensor,
    others: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    out_dtypes: Sequence[torch.dtype],
    chunks: int,
    group_size: int,
    group_name: str,
    keep_received: bool,
) -> list[Tensor]:
    check_lists("all_to_all_matmul", len(others), biases=biases, out_dtypes=out_dtypes)
    scattered_shape(tensor.shape, 0, group_size)
    pairs = zip(others, out_dtypes, strict=True)
    results = [tensor.new_empty(product_shape(tensor.shape, other.shape), dtype=dtype) for other, dtype in pairs]
    return [*results, tensor.new_empty(tensor.shape)] if keep_received else results


def _fake_matmul_all_to_all(
    lefts: Sequence[Tensor],
    rights: Sequence[Tensor],
    bias: Tensor | None,
    chunks: int,
    group_size: int,
    group_name: str,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    shape, dtype = _partial("matmul_all_to_all", lefts, rights, "sum", out_dtype)
    scattered_shape(shape, 0, group_size)
    return lefts[0].new_empty(shape, dtype=dtype)


def _register(name: str, schema: str, fake: Callable[..., Any]) -> None:
    qualified = f"counterpoint::{name}"
    torch.library.define(qualified, schema, tags=_TAGS)
    register_fake_kernel(qualified, fake)


_register(
    "all_gather_matmul",
    "(Tensor shard, Tensor[] others, Tensor?[] biases, ScalarType[] out_dtypes, int gather_dim, bool gathered_left, "
    f"{_GROUP}, bool keep_gathered) -> Tensor[]",
    _fake_all_gather_matmul,
)
_register(
    "all_gather_scaled_matmul",
    "(Tensor shard, Tensor shard_scale, Tensor[] others, Tensor[] scales, Tensor?[] biases, Tensor?[] result_scales, "
    f"ScalarType[] out_dtypes, bool[] fast_accum, int gather_dim, {_GROUP}, bool keep_gathered) -> Tensor[]",
    _fake_all_gather_scaled_matmul,
)
_register(
    "matmul_reduce_scatter",
    "(Tensor[] lefts, Tensor[] rights, Tensor? bias, str reduce_op, int scatter_dim, "
    f"{_GROUP}, ScalarType? out_dtype=None) -> Tensor",
    _fake_matmul_reduce_scatter,
)
_register(
    "scaled_matmul_reduce_scatter",
    "(Tensor[] lefts, Tensor[] rights, Tensor[] left_scales, Tensor[] right_scales, Tensor? bias, "
    "Tensor? result_scale, str reduce_op, int scatter_dim, bool fast_accum, "
    f"{_GROUP}, ScalarType? out_dtype=None) -> Tensor",
    _fake_scaled_matmul_reduce_scatter,
)
_register(
    "matmul_all_reduce",
    "(Tensor[] lefts, Tensor[] rights, Tensor? bias, str reduce_op, int chunks, str group_name, "
    "ScalarType? out_dtype=None) -> Tensor",
    _fake_matmul_all_reduce,
)

_register(
    "all_to_all_matmul",
    f"(Tensor tensor, Tensor[] others, Tensor?[] biases, ScalarType[] out_dtypes, {_GROUP}, bool keep_received) "
    "-> Tensor[]",
    _fake_all_to_all_matmul,
)
_register(
    "matmul_all_to_all",
    f"(Tensor[] lefts, Tensor[] rights, Tensor? bias, {_GROUP}, ScalarType? out_dtype=None) -> Tensor",
    _fake_matmul_all_to_all,
)

OPS = torch.ops.counterpoint
"""The operators: `OPS.all_gather_matmul.default` and so on."""

SHAPED_BY: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        OPS.all_gather_matmul.default: _fake_all_gather_matmul,
        OPS.all_gather_scaled_matmul.default: _fake_all_gather_scaled_matmul,
        OPS.matmul_reduce_scatter.default: _fake_matmul_reduce_scatter,
        OPS.scaled_matmul_reduce_scatter.default: _fake_scaled_matmul_reduce_scatter,
        OPS.matmul_all_reduce.default: _fake_matmul_all_reduce,
        OPS.all_to_all_matmul.default: _fake_all_to_all_matmul,
        OPS.matmul_all_to_all.default: _fake_matmul_all_to_all,
    }
)
"""What each would compute, as a plain function of tensors that need no values."""
