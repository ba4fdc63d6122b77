"""Collectives of ranks on one host: in shared memory, over gloo, and what copying as many bytes takes.

python benchmarks/bench_shared_memory.py [--quick] [--ranks 2 4] [--pin]

`size` is that of the whole tensor: what an all-reduce gets, what a gather gives, what a reduce-scatter is given. `copy`
is every rank copying a tensor of that size from one place in its own memory to another, all at once. A time is the
median over calls of the slowest rank; gloo, ours and the copy take turns, call by call. All sizes are gone through
several times, since a processor that is shared with others may be slow for seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from _bench import print_table

from counterpoint.cost.shared_memory import (
    HostMemory,
    all_gather_us,
    crossing_bytes,
    one_shot_us,
    prefers_two_shot,
    reduce_scatter_us,
    two_shot_us,
)
from counterpoint.runtime.shared_memory import Workspace, workspace_of

KB, MB = 1 << 10, 1 << 20
SIZES = (1 * KB, 16 * KB, 64 * KB, 256 * KB, 1 * MB, 4 * MB, 16 * MB, 64 * MB)
QUICK_SIZES = (1 * KB, 64 * KB, 1 * MB, 16 * MB)
CROSSING_SIZES = tuple(4 * KB << exponent for exponent in range(0, 13, 2))
ROUNDS = 3
MOVED_PER_CASE = 512 * MB
"""So that large sizes are repeated less often."""

Calls = Mapping[str, Callable[[], Any]]


def all_reduces(workspace: Workspace, size: int) -> Calls:
    given, result = torch.ones(size // 4), torch.empty(size // 4)
    return {
        "gloo": lambda: dist.all_reduce(given),
        "ours": lambda: workspace.all_reduce(given, out=result),
        "copy": lambda: result.copy_(given),
        "one-shot": lambda: workspace.one_shot_all_reduce(given, out=result),
        "two-shot": lambda: workspace.two_shot_all_reduce(given, out=result),
    }


def all_gathers(workspace: Workspace, size: int) -> Calls:
    part, result, other = torch.ones(size // 4 // workspace.size), torch.empty(size // 4), torch.ones(size // 4)
    return {
        "gloo": lambda: dist.all_gather_into_tensor(result, part),
        "ours": lambda: workspace.all_gather(part, out=result),
        "copy": lambda: result.copy_(other),
    }


def reduce_scatters(workspace: Workspace, size: int) -> Calls:
    given, result, other = torch.ones(size // 4), torch.empty(size // 4 // workspace.size), torch.empty(size // 4)
    return {
        "gloo": lambda: dist.reduce_scatter_tensor(result, given),
        "ours": lambda: workspace.reduce_scatter(given, out=result),
        "copy": lambda: other.copy_(given),
    }


KINDS: Mapping[str, Callable[[Workspace, int], Calls]] = {
    "all_reduce": all_reduces,
    "all_gather": all_gathers,
    "reduce_scatter": reduce_scatters,
}


def slowest(calls: Calls, repeats: int, workspace: Workspace) -> dict[str, list[float]]:
    """Microseconds of each call: the slowest rank's, repeat by repeat, the first of them left out."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    token = torch.ones(1)
    for _ in range(repeats + 1):
        for name, call in calls.items():
            # Ranks begin together as nearly as they can, by the fastest thing there is.
            workspace.all_reduce(token, "max", out=token)
            began = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - began)
    line = torch.tensor([values[1:] for values in times.values()])
    found = (workspace.all_reduce(line, "max") * 1e6).tolist()
    return dict(zip(times, found, strict=True))


def rank_main(rank: int, world: int, store: str, sizes: tuple[int, ...], most: int, pin: bool) -> None:
    """One rank; rank 0 prints."""
    torch.set_num_threads(1)
    if pin:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    workspace = workspace_of()

    def measured(cases: Iterable[tuple[str, int]]) -> dict[tuple[str, int], dict[str, float]]:
        times: dict[tuple[str, int], dict[str, list[float]]] = {}
        for kind, size in [*cases] * ROUNDS:
            repeats = min(most, max(3, MOVED_PER_CASE // size // ROUNDS))
            for name, values in slowest(KINDS[kind](workspace, size), repeats, workspace).items():
                times.setdefault((kind, size), {}).setdefault(name, []).extend(values)
        return {case: {name: statistics.median(us) for name, us in ways.items()} for case, ways in times.items()}

    found = measured((kind, size) for kind in KINDS for size in sizes)
    crossing = {size: us for (_, size), us in measured(("all_reduce", size) for size in CROSSING_SIZES).items()}
    if rank == 0:
        report(world, workspace.host, found, crossing)
    dist.destroy_process_group()


def report(
    world: int, host: HostMemory, found: Mapping[tuple[str, int], dict[str, float]], crossing: Mapping[int, Any]
) -> None:
    """Both tables of a number of ranks."""
    rows = [
        [
            kind,
            text(size),
            us["gloo"],
            us["ours"],
            f"{us['gloo'] / us['ours']:.1f}x",
            predicted(kind, size, world, host),
            us["copy"],
            f"{us['ours'] / us['copy']:.1f}x",
        ]
        for (kind, size), us in found.items()
    ]
    load = os.getloadavg()[0]
    title = f"{world} ranks, {os.cpu_count()} processors, load {load:.1f}: microseconds, float32"
    columns = ["collective", "size", "gloo", "ours", "gloo / ours", "predicted", "copy", "ours / copy"]
    print_table(title, columns, rows)
    print_table(
        f"{world} ranks, one or two exchanges: crossing predicted at {crossing_bytes(world, host) / KB:.0f} KB",
        ["size", "one-shot", "two-shot", "two / one", "chosen"],
        [
            [
                text(size),
                us["one-shot"],
                us["two-shot"],
                us["two-shot"] / us["one-shot"],
                "two-shot" if prefers_two_shot(size, world, host) else "one-shot",
            ]
            for size, us in crossing.items()
        ],
    )


def predicted(kind: str, size: int, world: int, host: HostMemory) -> float:
    """The model's time for a row."""
    if kind == "all_reduce":
        return min(one_shot_us(size, world, host), two_shot_us(size, world, host))
    return all_gather_us(size / world, world, host) if kind == "all_gather" else reduce_scatter_us(size, world, host)


def text(size: int) -> str:
    return f"{size // MB} MB" if size >= MB else f"{size // KB} KB"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few sizes, few repeats")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--pin", action="store_true", help="each rank on a processor of its own")
    asked = parser.parse_args()
    if os.path.exists("/sys/class/net/lo"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for world in asked.ranks:
        with tempfile.TemporaryDirectory() as folder:
            sizes, most = (QUICK_SIZES, 9) if asked.quick else (SIZES, 67)
            arguments = (world, os.path.join(folder, "store"), sizes, most, asked.pin)
            mp.spawn(rank_main, arguments, world)


if __name__ == "__main__":
    main()
