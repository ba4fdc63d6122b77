"""What a group of real processes can do, tried: the same program on all ranks, sums that are right, latency, bandwidth.

What ranks say of themselves goes over the store with a deadline, so that one which differs is named and nobody hangs.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from counterpoint._torch import default_store
from counterpoint.cost.link import traffic_bytes
from counterpoint.errors import AgreementError, CommunicationError
from counterpoint.ir.ops import Kind
from counterpoint.runtime.calibrate import measure_collectives
from counterpoint.runtime.measure import device_of
from counterpoint.runtime.store import arrived, ranks_text

SIZES_BYTES = (1024, 1024 * 1024, 32 * 1024 * 1024)
HOST = "host"
"""The one fact in which ranks may differ."""
VARIABLES = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCHINDUCTOR_", "COUNTERPOINT_", "OMP_NUM_THREADS")
"""Beginnings of the environment variables that change what collectives or compilers do."""
FOLDERS = ("TORCHINDUCTOR_CACHE_DIR",)
"""Of these, such as may differ."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size of an all-reduce."""

    nbytes: int
    us: float
    gbps: float
    """What each rank sends, in Gbit/s."""


def facts_of_this_rank(more: Mapping[str, str]) -> dict[str, str]:
    """What ranks should have in common, and their host; `more` is what the caller knows."""
    variables = {
        f"environment variable {name}": value
        for name, value in os.environ.items()
        if name.startswith(VARIABLES) and name not in FOLDERS
    }
    device = device_of(None)
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        HOST: platform.node(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "the device": f"{device.type}, {kind}",
        **variables,
        **more,
    }


def exchanged(own: Mapping[str, str], within_s: float) -> list[dict[str, str]]:
    """The facts of every rank; AgreementError names those that say nothing in time."""
    store = default_store()
    ranks = range(dist.get_world_size())
    # Each time has keys of its own, or a rank could read what another one said the last time.
    time = store.add(f"counterpoint/doctor/times/{dist.get_rank()}", 1)
    keys = [f"counterpoint/doctor/{time}/{rank}" for rank in ranks]
    store.set(keys[dist.get_rank()], json.dumps(dict(own)))
    if not arrived(store, keys, within_s):
        silent = [rank for rank in ranks if not store.check([keys[rank]])]
        raise AgreementError(
            f"{ranks_text(silent)} said nothing within {within_s:g} s",
            where="self-test of the group",
            next_step="look at the log of the missing rank",
        )
    return [json.loads(bytes(store.get(key))) for key in keys]


def differences(facts: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """In what ranks differ that should not, one line each."""
    for name in sorted(set().union(*facts) - {HOST}):
        by_value: dict[str, list[int]] = {}
        for rank, one in enumerate(facts):
            by_value.setdefault(one.get(name, "not set"), []).append(rank)
        if len(by_value) > 1:
            told = "; ".join(f"{value!r} on {ranks_text(ranks)}" for value, ranks in by_value.items())
            yield f"{name}: {told}"


def check_sums() -> None:
    """CommunicationError unless an all-reduce adds up. A collective call."""
    world, rank = dist.get_world_size(), dist.get_rank()
    payload = torch.arange(16, dtype=torch.float32, device=device_of(None)) * (rank + 1)
    dist.all_reduce(payload)
    expected = torch.arange(16, dtype=torch.float32) * (world * (world + 1) // 2)
    if not torch.equal(payload.cpu(), expected):
        raise CommunicationError(
            f"an all-reduce over {world} ranks gives wrong sums: {payload.tolist()[:4]}, not {expected.tolist()[:4]}",
            where=f"backend {dist.get_backend()}",
            next_step="try another backend; with NCCL, try NCCL_P2P_DISABLE=1 to find the faulty way",
        )


def measured_points(sizes: Sequence[int] = SIZES_BYTES) -> list[Point]:
    """What all-reduces of the whole world take. A collective call."""
    table = measure_collectives([None], kinds=[Kind.ALL_REDUCE], sizes=sizes)
    world = dist.get_world_size()
    curves = [curve for (kind, _), curve in table.collectives.items() if kind is Kind.ALL_REDUCE]
    return [
        Point(nbytes=int(nbytes), us=us, gbps=traffic_bytes(Kind.ALL_REDUCE, nbytes, world) * 8e-3 / us)
        for curve in curves
        for nbytes, us in curve
        if us > 0
    ]
