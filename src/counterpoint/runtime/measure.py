"""Measuring the links of groups, once, so that sizes are chosen by what the network really does.

    torch.distributed.init_process_group(...)
    counterpoint.calibrate_links()

Every rank makes the call at the same place of its program, so it cannot hang, and all agree on what it finds: a compile
itself never communicates, because one rank may find its code in the cache while another compiles. What was found counts
for every graph compiled afterwards, and is part of what identifies compiled code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from counterpoint.cost.link import Link, traffic_bytes
from counterpoint.cost.table import LinkTable
from counterpoint.errors import GroupError
from counterpoint.ir.ops import Kind
from counterpoint.runtime.pretend import pretends

SMALL_BYTES = 256
SIZES_BYTES = (256 * 1024, 4 * 1024 * 1024)
"""What bandwidth is measured with. The difference between the two is free of latency."""
REPEATS = 5


class Links:
    """The links that this process knows of. Held by the caller of the passes; passes are given a table."""

    def __init__(self) -> None:
        self._table = LinkTable()
        self._lock = threading.Lock()

    @property
    def table(self) -> LinkTable:
        """All that was measured so far."""
        return self._table

    def add(self, ranks: Sequence[int], link: Link) -> None:
        """Remember the link of a group and of all groups of its layout."""
        with self._lock:
            self._table = self._table.with_link(ranks, link)

    def clear(self) -> None:
        """Forget everything, as after `destroy_process_group`."""
        with self._lock:
            self._table = LinkTable()


LINKS = Links()
"""What the backend compiles by."""


def calibrate_links(group: dist.ProcessGroup | None = None, *, links: Links = LINKS) -> Link | None:
    """Measure the link of a group, and use it for every graph compiled from now on.

    A collective call: all ranks of the world make it together, each with its own group where the mesh has several of a
    kind. They agree on the slowest. Takes a few transfers of up to 4 MB. None where there is nothing to measure: a
    group of one, or a backend that only pretends (`fake`).
    """
    if not dist.is_initialized():
        raise GroupError(
            "there is no process group to measure",
            where="calibrate_links",
            next_step="call torch.distributed.init_process_group first",
        )
    ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    if pretends(group) or dist.get_world_size() == 1:
        return None
    latency_us, slope_us = _measured(group, len(ranks)) if len(ranks) > 1 else (0.0, 0.0)
    agreed = slowest([latency_us, slope_us])
    if agreed[1] <= 0:
        return None
    link = Link(latency_us=agreed[0], bandwidth_gbps=8e-3 / agreed[1]).rounded()
    links.add(ranks, link)
    return link


def _measured(group: dist.ProcessGroup | None, ranks: int) -> tuple[float, float]:
    """Microseconds of a small call, and for each further byte that a rank sends.

    The minimum over repeats, since a peer that arrives late only ever adds.
    """
    latency_us = _best_us(SMALL_BYTES, group)
    small, large = SIZES_BYTES
    grown_us = _best_us(large, group) - _best_us(small, group)
    traffic = traffic_bytes(Kind.ALL_REDUCE, large - small, ranks)
    # On a machine so busy that the larger one was the faster, still take it for some bandwidth.
    return latency_us, max(grown_us, 1.0) / traffic


def _best_us(nbytes: int, group: dist.ProcessGroup | None) -> float:
    payload = torch.zeros(nbytes // 4, device=device_of(group))
    times = []
    for _ in range(REPEATS):
        dist.barrier(group)
        synchronize(payload.device)
        began = time.perf_counter()
        dist.all_reduce(payload, group=group)
        synchronize(payload.device)
        times.append(time.perf_counter() - began)
    return min(times[1:]) * 1e6


def slowest(values: list[float]) -> list[float]:
    """The largest of each value over all ranks of the world: the same list on all."""
    agreed = torch.tensor(values, dtype=torch.float64, device=device_of(None))
    dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
    return [float(value) for value in agreed.tolist()]


def device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Where the group's backend takes tensors from."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or "gloo" in dist.get_backend(group):
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
