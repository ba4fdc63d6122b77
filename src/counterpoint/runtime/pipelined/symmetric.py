"""On CUDA devices that reach each other's memory: a copying stream fetches parts while the current one multiplies.

Every wait is one of streams, so the host is far ahead and nothing here blocks it. Kernels that multiply while they
fetch would be one more module beside this one, with the same three functions.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint._torch import SymmetricWorkspace, symmetric_workspace
from counterpoint.runtime.pipelined.gathers import Gather, Products
from counterpoint.runtime.pipelined.plain import gather_tensor
from counterpoint.runtime.pipelined.point_to_point import Step, cut, keep, rooms, steps
from counterpoint.runtime.pipelined.scatters import Partial

_MEET, _FILLED, _SIGNAL = 0, 1, 2
"""Channels: two for barriers, one for signals between pairs."""


class CopyStreams:
    """One stream a device, to copy on."""

    def __init__(self) -> None:
        self._streams: dict[int, torch.cuda.Stream] = {}

    def of(self, device: torch.device) -> torch.cuda.Stream:
        """The stream of a device."""
        index = device.index if device.index is not None else torch.cuda.current_device()
        if index not in self._streams:
            # Copies first: they are short, and what is computed next waits for them.
            self._streams[index] = torch.cuda.Stream(device=index, priority=-1)
        return self._streams[index]


COPY_STREAMS = CopyStreams()


def gather_matmul(gather: Gather, group: dist.ProcessGroup) -> list[Tensor]:
    """The products, and the gathered operand where it is kept."""
    shard, dim, extent = gather.shard.contiguous(), gather.dim, gather.extent
    workspace = symmetric_workspace(group.group_name, shard.nbytes)
    rank, current, copying = workspace.rank, torch.cuda.current_stream(), COPY_STREAMS.of(shard.device)
    scale = gather.shard_scale
    if scale is not None and gather.scale_travels:
        scale = gather_tensor(scale, dim, gather.ranks, group)
    gathered = gather.gathered() if gather.keep else None
    products = Products(gather, scale)
    plan = list(steps(rank, gather.ranks, cut(extent, gather.chunks), -1))
    places = rooms(gather, plan, gathered)
    workspace.barrier(_MEET)
    workspace.get_buffer(rank, shard.shape, shard.dtype).copy_(shard)
    workspace.barrier(_FILLED)
    copying.wait_stream(current)
    arrived = [_fetch(workspace, shard, dim, step, place, copying) for step, place in zip(plan, places, strict=True)]
    products.add(shard, rank * extent)
    if gathered is not None:
        gathered.narrow(dim, rank * extent, extent).copy_(shard)
    for step, place, event in zip(plan, places, arrived, strict=True):
        current.wait_event(event)
        start = step.source * extent + step.chunk.start
        products.add(place, start)
        if gathered is not None:
            keep(place, gathered, dim, start)
    workspace.barrier(_MEET)
    results = products.finish()
    return results if gathered is None else [*results, gathered]


def _fetch(
    workspace: SymmetricWorkspace, shard: Tensor, dim: int, step: Step, place: Tensor, copying: torch.cuda.Stream
) -> torch.cuda.Event:
    remote = workspace.get_buffer(step.source, shard.shape, shard.dtype)
    with torch.cuda.stream(copying):
        place.copy_(remote.narrow(dim, *step.chunk))
        event = torch.cuda.Event()
        event.record(copying)
    return event


def matmul_scatter(partial: Partial, dim: int, reduce_op: str, group: dist.ProcessGroup) -> Tensor:
    """This rank's part of the reduced sum: each part is fetched from where its rank has computed it."""
    extent = partial.shape[dim] // group.size()
    like = partial.room((dim, extent))
    workspace = symmetric_workspace(group.group_name, like.nbytes * (group.size() - 1))
    rank, ranks = workspace.rank, workspace.world_size
    current, copying = torch.cuda.current_stream(), COPY_STREAMS.of(partial.device)
    summands = like.new_empty((ranks, *like.shape))
    workspace.barrier(_MEET)
    copying.wait_stream(current)
    for distance in range(1, ranks):
        owner, source, slot = (rank + distance) % ranks, (rank - distance) % ranks, (distance - 1) * like.numel()
        partial.part_into(workspace.get_buffer(rank, like.shape, like.dtype, slot), dim, owner * extent, extent)
        workspace.put_signal(owner, _SIGNAL)
        with torch.cuda.stream(copying):
            workspace.wait_signal(source, _SIGNAL)
            summands[source].copy_(workspace.get_buffer(source, like.shape, like.dtype, slot))
    partial.part_into(summands[rank], dim, rank * extent, extent)
    current.wait_stream(copying)
    workspace.barrier(_MEET)
    return summands.mean(0) if reduce_op == "avg" else summands.sum(0)
