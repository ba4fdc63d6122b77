"""Symmetric memory without a device: files that all ranks map, streams that run at once, signals as messages.

What the lowering for CUDA copies, multiplies and adds is then real, on CPU tensors; the order of its streams is not.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint.runtime.pipelined import symmetric, torch_fused
from tests.support.pipelined_cases import check_all

BYTES = 1 << 16
_TAG = 7


class Workspace:
    """What `counterpoint._torch.SymmetricWorkspace` promises, on files."""

    def __init__(self, folder: str) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._memory = [self._mapped(Path(folder) / str(rank)) for rank in range(self.world_size)]
        self._sent: list[Any] = []

    def _mapped(self, path: Path) -> Tensor:
        return torch.from_file(str(path), shared=True, size=BYTES, dtype=torch.uint8)

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0) -> Tensor:
        start, count = storage_offset * dtype.itemsize, prod(sizes) * dtype.itemsize
        return self._memory[rank][start : start + count].view(dtype).view(*sizes)

    def barrier(self, channel: int = 0) -> None:
        dist.barrier()

    def put_signal(self, dst_rank: int, channel: int = 0) -> None:
        self._sent.append(dist.isend(torch.zeros(1), dst_rank, tag=_TAG))

    def wait_signal(self, src_rank: int, channel: int = 0) -> None:
        dist.recv(torch.zeros(1), src_rank, tag=_TAG)


@contextlib.contextmanager
def stand_in(workspace: Workspace) -> Iterator[None]:
    """Let the lowering find this workspace, and streams and events that do nothing."""
    with contextlib.ExitStack() as stack:
        for name in ("current_stream", "Event"):
            stack.enter_context(mock.patch.object(torch.cuda, name, mock.MagicMock()))
        stack.enter_context(mock.patch.object(torch.cuda, "stream", return_value=contextlib.nullcontext()))
        stack.enter_context(mock.patch.object(symmetric, "COPY_STREAMS", mock.MagicMock()))
        stack.enter_context(mock.patch.object(symmetric, "symmetric_workspace", return_value=workspace))
        for name in ("torch_gather_obstacle", "torch_scatter_obstacle"):
            stack.enter_context(mock.patch.object(torch_fused, name, return_value="there is no device"))
        yield


def check_on_stand_in(cases: Sequence[Any]) -> dict[str, list[str]]:
    """The cases that differ on this rank."""
    folder = [tempfile.mkdtemp(prefix="counterpoint-test-") if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    with stand_in(Workspace(folder[0])):
        found = check_all(cases, "symmetric_memory")
    dist.barrier()
    if dist.get_rank() == 0:
        for path in Path(folder[0]).iterdir():
            path.unlink()
        Path(folder[0]).rmdir()
    return found
