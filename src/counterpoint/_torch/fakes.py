"""Fake values: making them, reading them, and what torch records of them."""

from __future__ import annotations

from typing import Any

import torch
from torch._library.fake_class_registry import FakeScriptObject
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.passes.shape_prop import TensorMetadata, _extract_tensor_metadata


def tensor_metadata(value: torch.Tensor) -> Any:
    """The `tensor_meta` record of a tensor, as torch's own propagation writes it."""
    if type(value) is FakeTensor and is_constant_sized(value) and value.is_contiguous():
        # Most are so, and asking torch takes longer than all the rest of making a node.
        return TensorMetadata(
            value.shape, value.dtype, value.requires_grad, value.stride(), torch.contiguous_format, False, {}
        )
    return _extract_tensor_metadata(value)


def fake_tensor(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A fake tensor of a device (which need not exist here) around a meta tensor; faster than a factory."""
    return FakeTensor(mode, meta, device)


def is_constant_sized(value: FakeTensor) -> bool:
    """Whether no size or stride of a fake tensor is symbolic, and its value is not known either."""
    return not value._has_symbolic_sizes_strides and value.constant is None


def real_object(value: Any) -> Any:
    """The object behind a tracing stand-in for a scripted or opaque object; anything else is itself."""
    if isinstance(value, FakeScriptObject):
        return object.__getattribute__(value, "real_obj")
    return value


def group_name(value: Any) -> str | None:
    """The name of a process group object; None for anything else."""
    groups = getattr(torch.distributed, "ProcessGroup", ())
    return str(value.group_name) if isinstance(value, groups) else None
