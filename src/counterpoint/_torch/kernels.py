"""Kernels of our own operators, as every torch version calls them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch


def register_kernel(qualified: str, kernel: Callable[..., Any]) -> None:
    """What the operator does, on every device."""
    torch.library.impl(qualified, "CompositeExplicitAutograd", _given_dtypes(kernel))


def register_fake_kernel(qualified: str, kernel: Callable[..., Any]) -> None:
    """What the operator would do, on fake tensors."""
    torch.library.register_fake(qualified, _given_dtypes(kernel))


def _given_dtypes(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, with every element type a `torch.dtype`: torch 2.11 hands those in lists over as numbers."""
    names = list(inspect.signature(kernel).parameters)
    places = [(place, name) for place, name in enumerate(names) if name.endswith(("dtype", "dtypes"))]
    if not places:
        return kernel

    @functools.wraps(kernel)
    def called(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        for place, name in places:
            if place < len(given):
                given[place] = _as_dtypes(given[place])
            elif name in kwargs:
                kwargs[name] = _as_dtypes(kwargs[name])
        return kernel(*given, **kwargs)

    return called


def _as_dtypes(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_dtypes(one) for one in value]
    return _dtype_of_number(value) if isinstance(value, int) else value


@functools.cache
def _dtype_of_number(number: int) -> torch.dtype:
    # Operators take the number wherever their schema has an element type.
    return torch.ops.aten.empty.memory_format([0], dtype=number, device="meta").dtype  # type: ignore[no-any-return]
