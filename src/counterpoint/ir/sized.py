"""Operators whose result is a matter of sizes, where their meta kernels are slow or there are very many of them.

A rule takes the fake mode and the arguments of the call, and answers with the value, or None where the call is not as
simple as the rule.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod
from types import MappingProxyType
from typing import Any, TypeGuard

import torch
from torch import Tensor

from counterpoint._torch import FakeTensor, FakeTensorMode, fake_tensor, is_constant_sized
from counterpoint.ir import packing

ATEN = torch.ops.aten
C10D = torch.ops._c10d_functional


def is_plain(value: Any, mode: FakeTensorMode) -> TypeGuard[FakeTensor]:
    """Whether the value is a fake tensor of this mode of which nothing is known but its form, and that in numbers."""
    return type(value) is FakeTensor and value.fake_mode is mode and is_constant_sized(value)


def same_storage(value: FakeTensor, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """A plain meta tensor that begins where the value does."""
    meta = torch.empty((0,), dtype=value.dtype, device="meta")
    return meta.set_(value.untyped_storage(), value.storage_offset(), shape, strides)


def _row_major(value: Any, mode: FakeTensorMode) -> TypeGuard[FakeTensor]:
    return is_plain(value, mode) and value.is_contiguous()


def _canonical(value: Any, mode: FakeTensorMode) -> TypeGuard[FakeTensor]:
    """Row-major, and with the strides that a fresh tensor would have even where a size is 1."""
    return _row_major(value, mode) and value.stride() == _strides(value.shape)


def _new(mode: FakeTensorMode, like: FakeTensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    return fake_tensor(mode, torch.empty(shape, dtype=dtype or like.dtype, device="meta"), like.fake_device)


def _counts(number: Any) -> bool:
    return type(number) is int and number > 0


def _on_one_device(mode: FakeTensorMode, values: Sequence[Any]) -> bool:
    return all(is_plain(value, mode) for value in values) and len({value.fake_device for value in values}) == 1


# -- fresh tensors ----------------------------------------------------------------------------------------------------


def _cat(mode: FakeTensorMode, values: Any, dim: Any = 0) -> Any:
    if dim != 0 or not all(_row_major(value, mode) and value.dim() for value in values):
        return None
    first = values[0]
    if len({(value.dtype, value.fake_device, value.shape[1:]) for value in values}) != 1:
        return None
    return _new(mode, first, (sum(value.shape[0] for value in values), *first.shape[1:]))


def _each(mode: FakeTensorMode, values: Any, *_: Any) -> Any:
    return [_new(mode, value, value.shape) for value in values] if all(_canonical(v, mode) for v in values) else None


def _each_scaled(mode: FakeTensorMode, values: Any, by: Any) -> Any:
    # Scaled integers, and products with complex numbers, have another element type.
    kept = type(by) in (int, float) and all(value.is_floating_point() for value in values)
    return _each(mode, values) if kept else None


def _alike(mode: FakeTensorMode, value: Any, *_: Any) -> Any:
    return _new(mode, value, value.shape) if _canonical(value, mode) else None


def _gathered(mode: FakeTensorMode, value: Any, ranks: Any, _: Any) -> Any:
    plain = is_plain(value, mode) and value.dim() and _counts(ranks)
    return _new(mode, value, (value.shape[0] * ranks, *value.shape[1:])) if plain else None


def _scattered(mode: FakeTensorMode, value: Any, _: Any, ranks: Any, __: Any) -> Any:
    plain = is_plain(value, mode) and value.dim() and _counts(ranks)
    return _new(mode, value, (value.shape[0] // ranks, *value.shape[1:])) if plain else None


def _scaled(mode: FakeTensorMode, value: Any, by: Any) -> Any:
    scales = type(by) in (int, float) and _canonical(value, mode) and value.is_floating_point()
    return _new(mode, value, value.shape) if scales else None


def _empty(mode: FakeTensorMode, shape: Any, *, dtype: Any, device: Any, pin_memory: Any = False) -> Any:
    plain = isinstance(device, torch.device) and not pin_memory and all(type(size) is int for size in shape)
    return fake_tensor(mode, torch.empty(shape, dtype=dtype, device="meta"), device) if plain else None


def _clone(mode: FakeTensorMode, value: Any, *, memory_format: Any) -> Any:
    plain = is_plain(value, mode) and memory_format is torch.contiguous_format
    return _new(mode, value, value.shape) if plain else None


def _pack_rows(mode: FakeTensorMode, values: Any, rows: Any, dtype: torch.dtype | None = None) -> Any:
    fits = _counts(rows) and _on_one_device(mode, values) and not any(value.numel() % rows for value in values)
    if not fits:
        return None
    dtypes = [value.dtype for value in values]
    total = packing.packed_numel([value.numel() for value in values], dtypes, dtype)
    return _new(mode, values[0], (total,), packing.packed_dtype(dtypes, dtype))


def _unpack_rows(mode: FakeTensorMode, packed: Any, rows: Any, sizes: Any, dims: Any, dtypes: Any) -> Any:
    if not is_plain(packed, mode) or not all(type(size) is int for size in sizes):
        return None
    shapes = packing.shapes_of(sizes, dims)
    return [_new(mode, packed, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


# -- views, and what is written ---------------------------------------------------------------------------------------


def _reshape(mode: FakeTensorMode, value: Any, shape: Any) -> Any:
    """A view of what lies in row-major order."""
    if not _canonical(value, mode) or not value.numel():
        return None
    wanted = _without_unknown(tuple(shape), value.numel())
    if wanted is None:
        return None
    return fake_tensor(mode, same_storage(value, wanted, _strides(wanted)), value.fake_device)


def _flatten(mode: FakeTensorMode, value: Any) -> Any:
    return _reshape(mode, value, (-1,)) if is_plain(value, mode) and value.dim() > 1 else None


def _copied_into(mode: FakeTensorMode, target: Any, source: Any) -> Any:
    plain = is_plain(target, mode) and is_plain(source, mode) and target.shape == source.shape
    return target if plain else None


@lru_cache(maxsize=4096)
def _without_unknown(shape: tuple[Any, ...], numel: int) -> tuple[int, ...] | None:
    """The shape with what is written as -1 filled in; None where it is not a shape of so many elements."""
    if not all(type(size) is int for size in shape):
        return None
    known = prod(size for size in shape if size != -1)
    sizes = tuple(numel // known if size == -1 and known else size for size in shape)
    return sizes if shape.count(-1) <= 1 and prod(sizes) == numel and min(sizes, default=1) > 0 else None


@lru_cache(maxsize=4096)
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    # Torch counts an empty dimension as one here.
    sizes = [max(size, 1) for size in shape[:0:-1]]
    strides = accumulate(sizes, operator.mul, initial=1) if shape else ()
    return tuple(strides)[::-1]


BY_SIZE: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        ATEN.cat.default: _cat,
        ATEN.clone.default: _clone,
        ATEN.copy_.default: _copied_into,
        ATEN.empty.memory_format: _empty,
        ATEN.div.Scalar: _scaled,
        ATEN.div.Tensor: _scaled,
        ATEN.flatten.using_ints: _flatten,
        ATEN.mul.Scalar: _scaled,
        ATEN.mul.Tensor: _scaled,
        ATEN.reshape.default: _reshape,
        ATEN.view.default: _reshape,
        ATEN._unsafe_view.default: _reshape,
        ATEN._foreach_div.Scalar: _each_scaled,
        ATEN._foreach_mul.Scalar: _each_scaled,
        C10D.all_gather_into_tensor.default: _gathered,
        C10D.all_reduce.default: _alike,
        C10D.all_reduce_coalesced.default: _each,
        C10D.reduce_scatter_tensor.default: _scattered,
        C10D.wait_tensor.default: _alike,
        packing.OPS.pack_rows.default: _pack_rows,
        packing.OPS.unpack_rows.default: _unpack_rows,
    }
)
"""The rules by operator."""
