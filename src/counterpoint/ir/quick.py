"""Fake values without a dispatch, for the operators that passes emit by the thousand.

Running an operator on fake tensors goes through the whole dispatcher and takes some 100 us; merging 1,000 collectives
emits thousands of reshapes. What these operators compute on contiguous tensors with constant sizes is plain
arithmetic on shapes, so it is done here in some 15 us. Whatever is not as simple is left to the dispatcher, and a test
holds both ways against each other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from counterpoint._torch import FakeTensor, FakeTensorMode, fake_tensor, is_constant_sized

ATEN = torch.ops.aten
C10D = torch.ops._c10d_functional


class _Hard(Exception):
    """The case is not one of the simple ones."""


def quick_value(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], mode: FakeTensorMode) -> Any:
    """What the call computes, or NotImplemented where only the dispatcher knows."""
    rule = _RULES.get(target)
    if rule is None or kwargs:
        return NotImplemented
    try:
        return rule(mode, *args)
    except _Hard:
        return NotImplemented


def _simple(value: Any, mode: FakeTensorMode) -> FakeTensor:
    """The tensor, when it is a plain contiguous one of this mode, of constant sizes, without a known value."""
    if type(value) is FakeTensor and value.fake_mode is mode and is_constant_sized(value) and value.is_contiguous():
        return value
    raise _Hard


def _strides(shape: Sequence[int]) -> list[int]:
    found, step = [0] * len(shape), 1
    for dim in range(len(shape) - 1, -1, -1):
        found[dim] = step
        step *= max(shape[dim], 1)
    return found


def _fresh(shape: Sequence[int], like: FakeTensor) -> Tensor:
    meta = torch.empty(shape, dtype=like.dtype, device="meta")
    return fake_tensor(like.fake_mode, meta, like.fake_device)


def _view(of: FakeTensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """A look at the same storage: others tell views by it."""
    meta = torch.empty((0,), dtype=of.dtype, device="meta")
    meta.set_(of.untyped_storage(), offset, shape, stride)
    return fake_tensor(of.fake_mode, meta, of.fake_device)


def _whole(sizes: Any) -> list[int]:
    if isinstance(sizes, (list, tuple)) and all(type(size) is int for size in sizes):
        return list(sizes)
    raise _Hard


def _reshape(mode: FakeTensorMode, value: Any, shape: Any) -> Tensor:
    source, wanted = _simple(value, mode), _whole(shape)
    if -1 in wanted:
        known = -prod(wanted)
        if known <= 0 or wanted.count(-1) > 1 or source.numel() % known:
            raise _Hard
        wanted[wanted.index(-1)] = source.numel() // known
    if prod(wanted) != source.numel() or not source.numel():
        raise _Hard
    return _view(source, wanted, _strides(wanted), int(source.storage_offset()))


def _cat(mode: FakeTensorMode, values: Any, dim: Any = 0) -> Tensor:
    sources = [_simple(value, mode) for value in values]
    first = sources[0]
    kinds = {(s.dtype, s.fake_device, s.dim(), tuple(s.shape[:dim]), tuple(s.shape[dim + 1 :])) for s in sources}
    if len(kinds) != 1 or not 0 <= dim < first.dim():
        raise _Hard
    shape = list(first.shape)
    shape[dim] = sum(source.shape[dim] for source in sources)
    return _fresh(shape, first)


def _split_with_sizes(mode: FakeTensorMode, value: Any, sizes: Any, dim: Any = 0) -> list[Tensor]:
    source, lengths = _simple(value, mode), _whole(sizes)
    if not 0 <= dim < source.dim() or sum(lengths) != source.shape[dim]:
        raise _Hard
    shape, stride, offset = list(source.shape), source.stride(), int(source.storage_offset())
    parts = []
    for length in lengths:
        parts.append(_view(source, [*shape[:dim], length, *shape[dim + 1 :]], stride, offset))
        offset += length * stride[dim]
    return parts


def _same(mode: FakeTensorMode, value: Any, *_: Any) -> Tensor:
    source = _simple(value, mode)
    return _fresh(source.shape, source)


def _all_gather(mode: FakeTensorMode, value: Any, ranks: Any, _: Any) -> Tensor:
    source = _simple(value, mode)
    if not source.dim() or type(ranks) is not int:
        raise _Hard
    return _fresh([source.shape[0] * ranks, *source.shape[1:]], source)


def _reduce_scatter(mode: FakeTensorMode, value: Any, _: Any, ranks: Any, __: Any) -> Tensor:
    source = _simple(value, mode)
    if not source.dim() or type(ranks) is not int:
        raise _Hard
    return _fresh([source.shape[0] // ranks, *source.shape[1:]], source)


def _element(_: FakeTensorMode, values: Any, index: Any) -> Any:
    if isinstance(values, (list, tuple)) and type(index) is int:
        return values[index]
    raise _Hard


_RULES: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        operator.getitem: _element,
        ATEN.reshape.default: _reshape,
        ATEN.view.default: _reshape,
        ATEN.cat.default: _cat,
        ATEN.split_with_sizes.default: _split_with_sizes,
        C10D.wait_tensor.default: _same,
        C10D.all_reduce.default: _same,
        C10D.all_gather_into_tensor.default: _all_gather,
        C10D.reduce_scatter_tensor.default: _reduce_scatter,
    }
)
