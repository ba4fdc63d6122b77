"""Fake values without the fake dispatcher, for the operators that passes emit by the thousand.

Running an operator on fake tensors takes some 100 us, and merging 1,000 collectives emits thousands of reshapes. For
the operators below the kernel for the meta device says the same: it is run on plain meta tensors that lie in the same
storages, and the results are wrapped, in some 20 us. Whatever is not plain (symbolic sizes, known values, several
devices) is left to the dispatcher, and a test holds both ways against each other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from counterpoint._torch import FakeTensor, FakeTensorMode, fake_tensor, is_constant_sized
from counterpoint.errors import CounterpointError
from counterpoint.ir import packing
from counterpoint.ir.pipelined import SHAPED_BY

ATEN = torch.ops.aten
C10D = torch.ops._c10d_functional

QUICK: frozenset[Any] = frozenset(
    {
        ATEN.reshape.default,
        ATEN.view.default,
        ATEN.cat.default,
        ATEN.split_with_sizes.default,
        C10D.wait_tensor.default,
        C10D.all_reduce.default,
        C10D.all_gather_into_tensor.default,
        C10D.reduce_scatter_tensor.default,
        packing.OPS.pack_rows.default,
        packing.OPS.pack_parts.default,
        packing.OPS.unpack_rows.default,
        packing.OPS.unpack_parts.default,
    }
)


class _NotPlain(Exception):
    """Only the dispatcher knows."""


def quick_value(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], mode: FakeTensorMode) -> Any:
    """What the call computes, or NotImplemented where only the dispatcher knows."""
    if target is operator.getitem:
        return _element(*args)
    if kwargs or not (target in QUICK or target in _BY_SIZE or target in SHAPED_BY):
        return NotImplemented
    devices: set[torch.device] = set()
    try:
        if target in _BY_SIZE and (value := _BY_SIZE[target](mode, *args)) is not None:
            return value
        shaped_by = SHAPED_BY.get(target)
        if shaped_by is not None:
            value = shaped_by(*(_sized(arg, mode, devices) for arg in args))
        elif target in QUICK:
            value = target(*(_plain(arg, mode, devices) for arg in args))
        else:
            return NotImplemented
        (device,) = devices
        return _wrapped(value, mode, device)
    except (_NotPlain, CounterpointError, RuntimeError, ValueError):
        # What is wrong with the call is better told by the dispatcher.
        return NotImplemented


def _element(values: Any, index: Any) -> Any:
    return values[index] if isinstance(values, (list, tuple)) and type(index) is int else NotImplemented


def _plain(value: Any, mode: FakeTensorMode, devices: set[torch.device]) -> Any:
    """The argument with meta tensors for fake ones."""
    if isinstance(value, (list, tuple)):
        return [_plain(item, mode, devices) for item in value]
    if type(value) is FakeTensor and value.fake_mode is mode and is_constant_sized(value):
        devices.add(value.fake_device)
        meta = torch.empty((0,), dtype=value.dtype, device="meta")
        return meta.set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())
    if isinstance(value, (Tensor, torch.SymInt)):
        raise _NotPlain
    return value


class _Sized(NamedTuple):
    """What an operator that returns fresh tensors asks of its arguments."""

    shape: Sequence[int]
    dtype: torch.dtype

    def new_empty(self, shape: Sequence[int], dtype: torch.dtype | None = None) -> _Sized:
        """What stands for a fresh tensor."""
        return _Sized(shape, dtype or self.dtype)


def _sized(value: Any, mode: FakeTensorMode, devices: set[torch.device]) -> Any:
    """The argument with sizes for fake tensors."""
    if type(value) is FakeTensor and value.fake_mode is mode and is_constant_sized(value):
        devices.add(value.fake_device)
        return _Sized(value.shape, value.dtype)
    if isinstance(value, (list, tuple)):
        return [_sized(item, mode, devices) for item in value]
    if isinstance(value, (Tensor, torch.SymInt)):
        raise _NotPlain
    return value


def _wrapped(value: Any, mode: FakeTensorMode, device: torch.device) -> Any:
    if isinstance(value, _Sized):
        return fake_tensor(mode, torch.empty(value.shape, dtype=value.dtype, device="meta"), device)
    if isinstance(value, (list, tuple)):
        return [_wrapped(item, mode, device) for item in value]
    if type(value) is not Tensor:
        raise _NotPlain
    return fake_tensor(mode, value, device)


def _row_major(value: Any, mode: FakeTensorMode) -> bool:
    plain = type(value) is FakeTensor and value.fake_mode is mode and is_constant_sized(value)
    return plain and value.is_contiguous()


def _cat(mode: FakeTensorMode, values: Any, dim: Any = 0) -> Any:
    if dim != 0 or not all(_row_major(value, mode) and value.dim() for value in values):
        return None
    first = values[0]
    if len({(value.dtype, value.fake_device, value.shape[1:]) for value in values}) != 1:
        return None
    return _new(mode, first, (sum(value.shape[0] for value in values), *first.shape[1:]))


def _each(mode: FakeTensorMode, values: Any, *_: Any) -> Any:
    return [_new(mode, value, value.shape) for value in values] if all(_row_major(v, mode) for v in values) else None


def _each_scaled(mode: FakeTensorMode, values: Any, by: Any) -> Any:
    # Scaled integers, and products with complex numbers, have another element type.
    kept = type(by) in (int, float) and all(value.is_floating_point() for value in values)
    return _each(mode, values) if kept else None


def _reshape(mode: FakeTensorMode, value: Any, shape: Any) -> Any:
    """A view of what lies in row-major order."""
    if not _row_major(value, mode) or not value.numel() or value.stride() != _strides(value.shape):
        return None
    shape = _without_unknown(shape, value.numel())
    if shape is None:
        return None
    meta = torch.empty((0,), dtype=value.dtype, device="meta")
    meta.set_(value.untyped_storage(), value.storage_offset(), shape, _strides(shape))
    return fake_tensor(mode, meta, value.fake_device)


def _without_unknown(shape: Sequence[Any], numel: int) -> list[int] | None:
    """The shape with what is written as -1 filled in; None where it is not a shape of so many elements."""
    if not all(type(size) is int for size in shape):
        return None
    known = prod(size for size in shape if size != -1)
    sizes = [numel // known if size == -1 and known else size for size in shape]
    return sizes if shape.count(-1) <= 1 and prod(sizes) == numel and min(sizes, default=1) > 0 else None


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = accumulate(reversed(shape[1:]), operator.mul, initial=1) if shape else ()
    return tuple(strides)[::-1]


def _new(mode: FakeTensorMode, like: FakeTensor, shape: Sequence[int]) -> Tensor:
    return fake_tensor(mode, torch.empty(shape, dtype=like.dtype, device="meta"), like.fake_device)


_BY_SIZE: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        ATEN.cat.default: _cat,
        ATEN.reshape.default: _reshape,
        ATEN.view.default: _reshape,
        ATEN._foreach_div.Scalar: _each_scaled,
        ATEN._foreach_mul.Scalar: _each_scaled,
        C10D.all_reduce_coalesced.default: _each,
    }
)
"""Operators whose result is a matter of sizes, where their meta kernels are slow or there are very many of them. None
where it is not as simple as that."""
