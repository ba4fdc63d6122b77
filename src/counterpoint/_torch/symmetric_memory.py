"""Torch's symmetric memory: buffers that every rank of a group maps, with signals between the ranks' streams."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class SymmetricWorkspace(Protocol):
    """What is used of torch's handle: methods of every version since 2.11."""

    rank: int
    world_size: int

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0) -> Tensor:
        """A rank's memory, mapped here."""

    def barrier(self, channel: int = 0) -> None:
        """Let the current streams of all ranks meet."""

    def put_signal(self, dst_rank: int, channel: int = 0) -> None:
        """Signal a rank from the current stream."""

    def wait_signal(self, src_rank: int, channel: int = 0) -> None:
        """Let the current stream wait for a rank's signal, and take it."""


def symmetric_workspace(group_name: str, nbytes: int) -> SymmetricWorkspace:
    """The workspace of a group, grown where it is smaller; torch's fused operators share it. A collective call."""
    module: Any = importlib.import_module("torch.distributed._symmetric_memory")
    # Needed up to torch 2.12; later it does nothing and says so.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        module.enable_symm_mem_for_group(group_name)
    handle: SymmetricWorkspace = module.get_symm_mem_workspace(group_name, min_size=nbytes)
    return handle


def symmetric_buffer(group_name: str, nbytes: int, device: torch.device) -> Tensor:
    """New memory of so many bytes that every rank of the group maps. A collective call."""
    module: Any = importlib.import_module("torch.distributed._symmetric_memory")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        module.enable_symm_mem_for_group(group_name)
    made: Tensor = module.empty(nbytes, dtype=torch.uint8, device=device)
    module.rendezvous(made, group_name)
    return made


def has_multicast(workspace: SymmetricWorkspace) -> bool:
    """Whether the switch can add up and copy what lies in a workspace."""
    return bool(getattr(workspace, "multicast_ptr", 0))


def device_has_multicast(number: int) -> bool:
    """Whether a GPU sits at a switch that can add up and copy, by what torch asks of the driver."""
    distributed: Any = importlib.import_module("torch._C._distributed_c10d")
    kinds: Any = importlib.import_module("torch._C._autograd")
    return bool(distributed._SymmetricMemory.has_multicast_support(kinds.DeviceType.CUDA, number))


def allocate_symmetric(nbytes: int, device: torch.device) -> Tensor:
    """Memory that the ranks of a group could map; RuntimeError where torch has none to give."""
    module: Any = importlib.import_module("torch.distributed._symmetric_memory")
    found: Tensor = module.empty(nbytes, dtype=torch.uint8, device=device)
    return found


def register_symmetric_operators() -> None:
    """Load what registers the operators `symm_mem::...`, which nothing else loads before they are used."""
    importlib.import_module("torch.distributed._symmetric_memory")
