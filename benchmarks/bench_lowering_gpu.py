"""All-reduces through symmetric memory on one GPU: 2 and 4 ranks under the Multi-Process Service, and no library.

    python benchmarks/bench_lowering_gpu.py [--quick]

In the same run and in turns: torch's one-shot and two-shot all-reduce of a tensor that lies in symmetric memory
already, the same of one that does not and is copied there and back, our operators, which take any tensor, and what they
choose by size. Each way is checked before it is timed: whole numbers, in place, out of place, views, odd offsets. One
device stands in for several, so bytes cost memory bandwidth and not a link's, and the crossing lies elsewhere than
between devices; the choice is by the links of a node.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from _bench import print_table
from torch import Tensor

from counterpoint._torch import register_operators, symmetric_buffer
from counterpoint.ir.shared_memory import OPS
from counterpoint.runtime.probe import PROBES
from counterpoint.runtime.symmetric_collectives import prefers_two_shot
from tests.support.gpu_sums import wrong_sums
from tests.support.one_gpu import multi_process_service, run_on_one_gpu

KB, MB = 1 << 10, 1 << 20
SIZES = (4 * KB, 16 * KB, 64 * KB, 256 * KB, 1 * MB, 4 * MB, 16 * MB, 64 * MB)
QUICK_SIZES = (4 * KB, 256 * KB, 16 * MB)
CALLS = 20
Ways = dict[str, Callable[[], Tensor]]


class Job(NamedTuple):
    """What every rank measures."""

    sizes: tuple[int, ...]
    repeats: int


def ways_of(given: Tensor, room: Tensor, name: str) -> Ways:
    """Ways of adding up a tensor; `room` lies in symmetric memory."""
    symm = torch.ops.symm_mem
    result = torch.empty_like(given)

    def copied_two_shot() -> Tensor:
        room.copy_(given)
        return result.copy_(symm.two_shot_all_reduce_(room, "sum", name))

    return {
        "torch one-shot, tensor in place": lambda: symm.one_shot_all_reduce_out(room, "sum", name, result),
        "torch two-shot, tensor in place": lambda: symm.two_shot_all_reduce_(room, "sum", name),
        "torch one-shot, copied": lambda: symm.one_shot_all_reduce_out(room.copy_(given), "sum", name, result),
        "torch two-shot, copied": copied_two_shot,
        "ours, one-shot": lambda: OPS.shm_one_shot_all_reduce(given, "sum", name),
        "ours, two-shot": lambda: OPS.shm_two_shot_all_reduce(given, "sum", name),
        "what we choose": lambda: OPS.shm_all_reduce(given, "sum", name),
    }


def measure(ways: Ways, repeats: int) -> dict[str, list[float]]:
    """Microseconds a call, in turns; the last rank's count."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            dist.barrier()
            began.record()
            for _ in range(CALLS):
                way()
            ended.record()
            torch.cuda.synchronize()
            took = torch.tensor([began.elapsed_time(ended) / CALLS * 1e3])
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if turn:
                times[name].append(took.item())
    return times


def rank_job(job: Job) -> tuple[str, list[str], list[Any]]:
    """What one rank finds: of symmetric memory, of values, of times."""
    register_operators()
    group = dist.group.WORLD
    device, name = torch.device("cuda", 0), group.group_name
    capabilities = PROBES.of(group, device)
    found = f"{capabilities.symmetric_memory.reason}; multicast: {capabilities.multicast.reason}"
    if not capabilities.symmetric_memory:
        return found, [], []
    wrong = wrong_sums()
    rows = []
    for size in job.sizes:
        given = torch.zeros(size // 2, device=device, dtype=torch.bfloat16)
        room = symmetric_buffer(name, size, device).view(torch.bfloat16)
        room.zero_()
        rows.append((size, measure(ways_of(given, room, name), job.repeats)))
        torch.cuda.synchronize()
        dist.barrier()
    return found, wrong, rows


def text(size: int) -> str:
    """A size for people."""
    return f"{size // MB} MB" if size >= MB else f"{size // KB} KB"


def main() -> None:
    """Print a table for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few sizes, few repeats")
    quick = parser.parse_args().quick
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return
    with multi_process_service() as environment:
        here = str(Path(__file__).resolve().parent)
        environment = {**environment, "PYTHONPATH": f"{here}:{environment.get('PYTHONPATH', '')}"}
        for ranks in (2, 4):
            job = Job(QUICK_SIZES if quick else SIZES, 5 if quick else 15)
            found, wrong, rows = run_on_one_gpu(rank_job, job, ranks=ranks, environment=environment)[0]
            print(f"{ranks} ranks: values {'right' if not wrong else f'WRONG: {wrong}'}")
            table = []
            for size, times in rows:
                medians = {name: statistics.median(each) for name, each in times.items()}
                copied = min(medians["torch one-shot, copied"], medians["torch two-shot, copied"])
                chosen = "two-shot" if prefers_two_shot(size, ranks) else "one-shot"
                for name, each in times.items():
                    said = f"{name} ({chosen})" if name == "what we choose" else name
                    table.append([text(size), said, medians[name], min(each), max(each), copied / medians[name]])
            columns = ["size", "way", "median us", "min", "max", "torch's best copied / this"]
            print_table(f"{ranks} ranks on {torch.cuda.get_device_name(0)}, bfloat16: {found}", columns, table)


if __name__ == "__main__":
    # The ranks import this file by its name.
    import bench_lowering_gpu

    bench_lowering_gpu.main()
