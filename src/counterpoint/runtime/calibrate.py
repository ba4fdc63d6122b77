"""Measuring what collectives really take, by kind and size, into one table that all ranks hold.

A collective's time begins when the last rank has come: what the others waited for it is no fault of the network. So a
call is timed on every rank, and of one call the shortest time counts, which is that of the rank that came last; of
several calls again the shortest. Groups of one layout are measured at the same time, as they run in a real step, and
the slowest of them counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint.cost.measured import Curve, MeasuredTable, curve_of
from counterpoint.cost.table import layout_of
from counterpoint.errors import GroupError
from counterpoint.ir.ops import Kind
from counterpoint.runtime.measure import device_of, slowest, synchronize

_C10D = torch.ops._c10d_functional

SIZES_BYTES = tuple(1024 * 4**power for power in range(10))
"""1 KB to 256 MB."""
KINDS = (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.BROADCAST)
REPEATS = 5
ENOUGH_US = 2e6
"""A size for which one call takes longer than this is measured once, and larger ones are left to the slope."""


class Call(NamedTuple):
    """A collective that is ready to be made."""

    start: Callable[[], Tensor]
    nbytes: int
    """Of the whole tensor."""


def _all_reduce(elements: int, ranks: int, group: str, device: torch.device) -> Call:
    payload = torch.zeros(elements, device=device)
    return Call(lambda: _C10D.all_reduce(payload, "sum", group), 4 * elements)


def _all_gather(elements: int, ranks: int, group: str, device: torch.device) -> Call:
    shard = torch.zeros(max(1, elements // ranks), device=device)
    return Call(lambda: _C10D.all_gather_into_tensor(shard, ranks, group), 4 * shard.numel() * ranks)


def _reduce_scatter(elements: int, ranks: int, group: str, device: torch.device) -> Call:
    payload = torch.zeros(max(1, elements // ranks) * ranks, device=device)
    return Call(lambda: _C10D.reduce_scatter_tensor(payload, "sum", ranks, group), 4 * payload.numel())


def _all_to_all(elements: int, ranks: int, group: str, device: torch.device) -> Call:
    part = max(1, elements // ranks)
    payload = torch.zeros(part * ranks, device=device)
    return Call(lambda: _C10D.all_to_all_single(payload, [part] * ranks, [part] * ranks, group), 4 * part * ranks)


def _broadcast(elements: int, ranks: int, group: str, device: torch.device) -> Call:
    payload = torch.zeros(elements, device=device)
    return Call(lambda: _C10D.broadcast(payload, 0, group), 4 * elements)


_CALLS: Mapping[Kind, Callable[[int, int, str, torch.device], Call]] = MappingProxyType(
    {
        Kind.ALL_REDUCE: _all_reduce,
        Kind.ALL_GATHER: _all_gather,
        Kind.REDUCE_SCATTER: _reduce_scatter,
        Kind.ALL_TO_ALL: _all_to_all,
        Kind.BROADCAST: _broadcast,
    }
)

_LEAVES_EARLY = frozenset({Kind.BROADCAST})
"""Kinds in which a rank may be done before the others have come, so that the longest time counts."""


def measure_collectives(
    groups: Sequence[dist.ProcessGroup | None] = (None,),
    *,
    kinds: Iterable[Kind] = KINDS,
    sizes: Sequence[int] = SIZES_BYTES,
    repeats: int = REPEATS,
    said: Callable[[str], object] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> MeasuredTable:
    """Measure these groups; None means the whole world. A collective call: all ranks of the world make it together.

    said: hears what is being measured, for progress. clock: seconds, this rank's own.
    """
    if not dist.is_initialized():
        raise GroupError(
            "there is no process group to measure",
            where="measure_collectives",
            next_step="call torch.distributed.init_process_group first",
        )
    curves: dict[tuple[Kind, tuple[int, ...]], Curve] = {}
    for group in groups:
        own = group if group is not None else dist.group.WORLD
        ranks = dist.get_process_group_ranks(own)
        if len(ranks) < 2 or dist.get_backend(own) == "fake":
            continue
        for kind in kinds:
            said(f"{kind.value} over {len(ranks)} ranks")
            points = _curve(_Stopwatch(own, kind, clock), sizes, repeats)
            if points:
                curves[kind, layout_of(ranks)] = curve_of(points)
    backend, world = dist.get_backend(), dist.get_world_size()
    origin = f"measured with {backend} on {world} ranks, torch {torch.__version__}"
    return MeasuredTable(curves, origin=origin, device_type=device_of(None).type)


class _Stopwatch(NamedTuple):
    """Times calls of one kind in one group."""

    group: Any
    kind: Kind
    clock: Callable[[], float]

    def prepared(self, nbytes: int) -> Call:
        """A call of about so many bytes."""
        ranks = dist.get_world_size(self.group)
        return _CALLS[self.kind](max(1, nbytes // 4), ranks, self.group.group_name, device_of(self.group))

    def shortest_us(self, call: Call, repeats: int) -> float:
        """The shortest of some calls, each counted from when the last rank had come; the slowest group counts."""
        device = device_of(self.group)
        mine = []
        for _ in range(repeats):
            dist.barrier(self.group)
            synchronize(device)
            began = self.clock()
            _C10D.wait_tensor(call.start())
            synchronize(device)
            mine.append((self.clock() - began) * 1e6)
        found = torch.tensor(mine, dtype=torch.float64, device=device)
        agreeing = dist.ReduceOp.MAX if self.kind in _LEAVES_EARLY else dist.ReduceOp.MIN
        dist.all_reduce(found, op=agreeing, group=self.group)
        return slowest([float(found.min())])[0]


def _curve(watch: _Stopwatch, sizes: Sequence[int], repeats: int) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for size in sorted(sizes):
        call = watch.prepared(size)
        first = watch.shortest_us(call, 1)
        if first > ENOUGH_US:
            return [*points, (call.nbytes, first)]
        points.append((call.nbytes, watch.shortest_us(call, repeats)))
    return points
