"""The kernels of the pipelined operators, for every device: arguments checked, read as data, handed to a lowering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from counterpoint._torch import register_kernel
from counterpoint.ir.pipelined import check_reduce_op
from counterpoint.ir.products import check_lists, from_end, scattered_shape
from counterpoint.runtime.pipelined import gradients, run  # noqa: F401  the first registers gradients
from counterpoint.runtime.pipelined.gathers import Factor, Gather, ScaledFactor
from counterpoint.runtime.pipelined.groups import sized_group
from counterpoint.runtime.pipelined.scatters import Partial, Scales


def _all_gather_matmul(
    shard: Tensor,
    others: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    out_dtypes: Sequence[Any],
    gather_dim: int,
    gathered_left: bool,
    chunks: int,
    group_size: int,
    group_name: str,
    keep_gathered: bool,
) -> list[Tensor]:
    check_lists("all_gather_matmul", len(others), biases=biases, out_dtypes=out_dtypes)
    factors = tuple(
        Factor(other=other, bias=bias, out_dtype=dtype)
        for other, bias, dtype in zip(others, biases, out_dtypes, strict=True)
    )
    gather = Gather(
        shard=shard,
        dim=from_end(gather_dim, shard.dim()),
        ranks=group_size,
        left=gathered_left,
        factors=factors,
        keep=keep_gathered,
        chunks=chunks,
    )
    return run.gather_matmul(gather, sized_group("all_gather_matmul", group_name, group_size), "all_gather_matmul")


def _all_gather_scaled_matmul(
    shard: Tensor,
    shard_scale: Tensor,
    others: Sequence[Tensor],
    scales: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    result_scales: Sequence[Tensor | None],
    out_dtypes: Sequence[Any],
    fast_accum: Sequence[bool],
    gather_dim: int,
    chunks: int,
    group_size: int,
    group_name: str,
    keep_gathered: bool,
) -> list[Tensor]:
    lists = {
        "scale": scales,
        "bias": biases,
        "result_scale": result_scales,
        "out_dtype": out_dtypes,
        "fast_accum": fast_accum,
    }
    check_lists("all_gather_scaled_matmul", len(others), **lists)
    factors = tuple(
        ScaledFactor(other=other, **{name: values[i] for name, values in lists.items()})
        for i, other in enumerate(others)
    )
    gather = Gather(
        shard=shard,
        dim=from_end(gather_dim, shard.dim()),
        ranks=group_size,
        left=True,
        factors=factors,
        keep=keep_gathered,
        chunks=chunks,
        shard_scale=shard_scale,
    )
    operator = "all_gather_scaled_matmul"
    return run.gather_matmul(gather, sized_group(operator, group_name, group_size), operator)


def _scattered(
    operator: str, partial: Partial, reduce_op: str, scatter_dim: int, chunks: int, group_size: int, group_name: str
) -> Tensor:
    check_reduce_op(operator, reduce_op)
    scattered_shape(partial.shape, scatter_dim, group_size)
    dim = from_end(scatter_dim, len(partial.shape))
    return run.matmul_scatter(partial, dim, reduce_op, chunks, sized_group(operator, group_name, group_size), operator)


def _matmul_reduce_scatter(
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
    check_lists("matmul_reduce_scatter", len(lefts), rights=rights)
    partial = Partial(lefts=tuple(lefts), rights=tuple(rights), bias=bias, out_dtype=out_dtype)
    return _scattered("matmul_reduce_scatter", partial, reduce_op, scatter_dim, chunks, group_size, group_name)


def _scaled_matmul_reduce_scatter(
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
    check_lists(operator, len(lefts), rights=rights, left_scales=left_scales, right_scales=right_scales)
    scales = Scales(left=tuple(left_scales), right=tuple(right_scales), result=result_scale, fast_accum=fast_accum)
    partial = Partial(lefts=tuple(lefts), rights=tuple(rights), bias=bias, out_dtype=out_dtype, scales=scales)
    return _scattered(operator, partial, reduce_op, scatter_dim, chunks, group_size, group_name)


def _matmul_all_reduce(
    lefts: Sequence[Tensor],
    rights: Sequence[Tensor],
    bias: Tensor | None,
    reduce_op: str,
    chunks: int,
    group_name: str,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    check_lists("matmul_all_reduce", len(lefts), rights=rights)
    check_reduce_op("matmul_all_reduce", reduce_op)
    partial = Partial(lefts=tuple(lefts), rights=tuple(rights), bias=bias, out_dtype=out_dtype)
    return run.matmul_all_reduce(partial, reduce_op, chunks, sized_group("matmul_all_reduce", group_name))


def _all_to_all_matmul(
    tensor: Tensor,
    others: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    out_dtypes: Sequence[Any],
    chunks: int,
    group_size: int,
    group_name: str,
    keep_received: bool,
) -> list[Tensor]:
    operator = "all_to_all_matmul"
    check_lists(operator, len(others), biases=biases, out_dtypes=out_dtypes)
    scattered_shape(tensor.shape, 0, group_size)
    factors = tuple(
        Factor(other=other, bias=bias, out_dtype=dtype)
        for other, bias, dtype in zip(others, biases, out_dtypes, strict=True)
    )
    # What one rank sends to each, so that what is received is as large as what would be gathered of it.
    part = Gather(
        shard=tensor[: tensor.shape[0] // group_size],
        dim=-tensor.dim(),
        ranks=group_size,
        left=True,
        factors=factors,
        keep=keep_received,
        chunks=chunks,
    )
    return run.exchange_matmul(tensor, part, sized_group(operator, group_name, group_size), operator)


def _matmul_all_to_all(
    lefts: Sequence[Tensor],
    rights: Sequence[Tensor],
    bias: Tensor | None,
    chunks: int,
    group_size: int,
    group_name: str,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    operator = "matmul_all_to_all"
    check_lists(operator, len(lefts), rights=rights)
    partial = Partial(lefts=tuple(lefts), rights=tuple(rights), bias=bias, out_dtype=out_dtype)
    scattered_shape(partial.shape, 0, group_size)
    return run.matmul_exchange(partial, chunks, sized_group(operator, group_name, group_size), operator)


def _register(name: str, kernel: Callable[..., Any]) -> None:
    register_kernel(f"counterpoint::{name}", kernel)


_register("all_gather_matmul", _all_gather_matmul)
_register("all_gather_scaled_matmul", _all_gather_scaled_matmul)
_register("matmul_reduce_scatter", _matmul_reduce_scatter)
_register("scaled_matmul_reduce_scatter", _scaled_matmul_reduce_scatter)
_register("matmul_all_reduce", _matmul_all_reduce)
_register("all_to_all_matmul", _all_to_all_matmul)
_register("matmul_all_to_all", _matmul_all_to_all)
