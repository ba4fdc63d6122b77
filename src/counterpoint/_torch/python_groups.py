"""Groups that are written in Python, and how operators reach them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist


@contextmanager
def python_backend(name: str, make: Callable[..., Any]) -> Iterator[None]:
    """Inside, `init_process_group(name)` makes groups by `make(options, backend_options)`."""
    dist.Backend.register_backend(name, make, extended_api=True, devices=["cpu", "cuda"])
    # From 2.15 on, torch hooks its flight recorder into groups whose backends do not record by themselves. The hook
    # asks the group for a backend in C++, which one in Python does not have.
    recording: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recording.add(name)
    try:
        yield
    finally:
        recording.discard(name)
        dist.Backend._plugins.pop(name.upper(), None)
        if name in dist.Backend.backend_list:
            dist.Backend.backend_list.remove(name)


def register_work(tensor: torch.Tensor, work: Any) -> None:
    """Let `wait_tensor(tensor)` wait for the work."""
    from torch._C import _distributed_c10d

    _distributed_c10d._register_work(tensor, work)


@contextmanager
def implementations(namespace: str, functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Inside, these operators run these functions on CPU and CUDA tensors; those that torch lacks are passed over."""
    packets = getattr(torch.ops, namespace)
    with torch.library._scoped_library(namespace, "IMPL") as library:
        for name, function in functions.items():
            if hasattr(packets, name):
                for key in ("CPU", "CUDA"):
                    library.impl(name, function, key)
        yield


def modules_that_initialise() -> tuple[ModuleType, ...]:
    """The modules of torch through which programs and torch itself make process groups."""
    from torch.distributed import device_mesh, distributed_c10d

    names = ("torch.distributed", device_mesh.__name__, distributed_c10d.__name__)
    return tuple(sys.modules[name] for name in names)
