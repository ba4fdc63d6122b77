"""Fake values without the fake dispatcher, for the operators that passes emit by the thousand.

Running an operator on fake tensors takes some 100 us, and merging 1,000 collectives emits thousands of reshapes. For
the operators below the kernel for the meta device says the same: it is run on plain meta tensors that lie in the same
storages, and the results are wrapped, in some 20 us; or there is nothing to run, because the result is a matter of
sizes (`sized`). Whatever is not plain (symbolic sizes, known values, several devices) is left to the dispatcher, and a
test holds both ways against each other.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from counterpoint._torch import FakeTensorMode, fake_tensor
from counterpoint.errors import CounterpointError
from counterpoint.ir import packing
from counterpoint.ir.pipelined import SHAPED_BY
from counterpoint.ir.sized import BY_SIZE, is_plain, same_storage

ATEN = torch.ops.aten
C10D = torch.ops._c10d_functional

QUICK: frozenset[Any] = frozenset(
    {
        ATEN.reshape.default,
        ATEN.view.default,
        ATEN.view.dtype,
        ATEN.slice.Tensor,
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
    try:
        rule = BY_SIZE.get(target)
        if rule is not None and (value := rule(mode, *args, **kwargs)) is not None:
            return value
        devices: set[torch.device] = set()
        shaped_by = SHAPED_BY.get(target)
        if kwargs:
            return NotImplemented
        if shaped_by is not None:
            value = shaped_by(*(_sized(arg, mode, devices) for arg in args))
        elif target in QUICK:
            value = target(*(_plain(arg, mode, devices) for arg in args))
        else:
            return NotImplemented
        (device,) = devices
        return _wrapped(value, mode, device)
    except (_NotPlain, CounterpointError, RuntimeError, TypeError, ValueError):
        # What is wrong with the call is better told by the dispatcher.
        return NotImplemented


def _element(values: Any, index: Any) -> Any:
    return values[index] if isinstance(values, (list, tuple)) and type(index) is int else NotImplemented


def _plain(value: Any, mode: FakeTensorMode, devices: set[torch.device]) -> Any:
    """The argument with meta tensors for fake ones."""
    if isinstance(value, (list, tuple)):
        return [_plain(item, mode, devices) for item in value]
    if is_plain(value, mode):
        devices.add(value.fake_device)
        return same_storage(value, value.shape, value.stride())
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
    if is_plain(value, mode):
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
