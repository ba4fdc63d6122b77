"""Fake values without the fake dispatcher, for the operators that passes emit by the thousand.

Running an operator on fake tensors takes some 100 us, and merging 1,000 collectives emits thousands of reshapes. For
the operators below the kernel for the meta device says the same: it is run on plain meta tensors that lie in the same
storages, and the results are wrapped, in some 20 us. Whatever is not plain (symbolic sizes, known values, several
devices) is left to the dispatcher, and a test holds both ways against each other.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from counterpoint._torch import FakeTensor, FakeTensorMode, fake_tensor, is_constant_sized
from counterpoint.ir import packing

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
    if target not in QUICK or kwargs:
        return NotImplemented
    devices: set[torch.device] = set()
    try:
        plain = [_plain(arg, mode, devices) for arg in args]
        (device,) = devices
        return _wrapped(target(*plain), mode, device)
    except (_NotPlain, RuntimeError, ValueError):
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


def _wrapped(value: Any, mode: FakeTensorMode, device: torch.device) -> Any:
    if isinstance(value, (list, tuple)):
        return [_wrapped(item, mode, device) for item in value]
    if type(value) is not Tensor:
        raise _NotPlain
    return fake_tensor(mode, value, device)
