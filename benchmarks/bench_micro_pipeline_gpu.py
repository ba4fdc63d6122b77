"""Pipelined operators on one GPU: 2 and 4 ranks under the Multi-Process Service, gloo for the host, symmetric memory.

    python benchmarks/bench_micro_pipeline_gpu.py [--quick]

In the same run and in turns: the matmul alone, the collective and then the matmul (torch's low-contention forms),
torch's fused operators, ours at several numbers of chunks, and what our operators choose. Each is checked against the
plain one before it is timed. One device stands in for several, so copies cost memory bandwidth and not a link's.
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

from counterpoint._torch import register_operators, symmetric_workspace
from counterpoint.ir.pipelined import OPS
from counterpoint.runtime.pipelined import operators, symmetric  # noqa: F401  the first registers
from counterpoint.runtime.pipelined.gathers import Factor, Gather
from counterpoint.runtime.pipelined.scatters import Partial
from counterpoint.runtime.probe import PROBES
from tests.support.one_gpu import multi_process_service, run_on_one_gpu

SIZES = {
    2: ((4096, 4096, 4096), (8192, 4096, 7168), (8192, 8192, 4096)),
    4: ((4096, 4096, 4096), (8192, 4096, 3584), (8192, 8192, 2048)),
}
"""By ranks: m, k, n of the gathered product, as in earlier measurements of torch's operators."""
CALLS = 10
WAIT = torch.ops._c10d_functional.wait_tensor.default
Ways = dict[str, Callable[[], Tensor]]


class Job(NamedTuple):
    """What every rank measures."""

    sizes: tuple[tuple[int, int, int], ...]
    repeats: int


def gathers(m: int, k: int, n: int) -> Ways:
    """Ways to a product of what is gathered."""
    ranks, group = dist.get_world_size(), dist.group.WORLD
    name, bf16 = group.group_name, torch.bfloat16
    shard = torch.randn(m // ranks, k, device="cuda", dtype=bf16)
    other = torch.randn(k, n, device="cuda", dtype=bf16)
    whole = torch.randn(m, k, device="cuda", dtype=bf16)

    def ours(chunks: int) -> Callable[[], Tensor]:
        factor = Factor(other=other, bias=None, out_dtype=bf16)
        call = Gather(shard=shard, dim=-2, ranks=ranks, left=True, factors=(factor,), keep=False, chunks=chunks)
        return lambda: symmetric.gather_matmul(call, group)[0]

    symm = torch.ops.symm_mem
    return {
        "matmul alone": lambda: torch.mm(whole, other),
        "gather, then matmul": lambda: torch.mm(WAIT(symm._low_contention_all_gather.default(shard, name)), other),
        "torch's fused": lambda: symm.fused_all_gather_matmul.default(shard, [other], 0, name, return_A=False)[1][0],
        **{f"ours, {chunks} chunks": ours(chunks) for chunks in (1, 2, 4)},
        "what we choose": lambda: OPS.all_gather_matmul.default(
            shard, [other], [None], [bf16], 0, True, 1, ranks, name, False
        )[0],
    }


def scatters(m: int, k: int, n: int) -> Ways:
    """Ways to a product that is reduced and scattered."""
    ranks, group = dist.get_world_size(), dist.group.WORLD
    name = group.group_name
    left = torch.randn(m, k, device="cuda", dtype=torch.bfloat16) / k**0.5
    right = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    call = Partial(lefts=(left,), rights=(right,), bias=None, out_dtype=None)
    symm = torch.ops.symm_mem
    return {
        "matmul alone": lambda: torch.mm(left, right),
        "matmul, then scatter": lambda: WAIT(
            symm._low_contention_reduce_scatter.default(torch.mm(left, right), "sum", name)
        ),
        "torch's fused": lambda: symm.fused_matmul_reduce_scatter.default(left, right, "sum", 0, name),
        "ours": lambda: symmetric.matmul_scatter(call, -2, "sum", group),
        "what we choose": lambda: OPS.matmul_reduce_scatter.default(
            [left], [right], None, "sum", 0, 1, ranks, name, None
        ),
    }


def measure(ways: Ways, repeats: int) -> dict[str, list[float]]:
    """Milliseconds a call, in turns; the last rank's count."""
    plain = ways[next(name for name in ways if "then" in name)]()
    for name, way in ways.items():
        if name != "matmul alone":
            worst = (way().float() - plain.float()).abs().max().item()
            assert worst <= 0.02 * plain.float().abs().max().item(), f"{name} differs by up to {worst}"
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
            took = torch.tensor([began.elapsed_time(ended) / CALLS])
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if turn:
                times[name].append(took.item())
    return times


def rank_job(job: Job) -> tuple[str, list[Any]]:
    """What one rank measures; also what was found of symmetric memory."""
    register_operators()
    group = dist.group.WORLD
    found = PROBES.of(group, torch.device("cuda", 0)).symmetric_memory
    if not found:
        return found.reason, []
    rows = []
    for m, k, n in job.sizes:
        # Once as large as it will be: growing is no part of a call.
        symmetric_workspace(group.group_name, 2 * m * max(k, n))
        for name, make in (("all_gather_matmul", gathers), ("matmul_reduce_scatter", scatters)):
            rows.append((name, (m, k, n), measure(make(m, k, n), job.repeats)))
    return found.reason, rows


def main() -> None:
    """Print a table for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first size only, few repeats")
    quick = parser.parse_args().quick
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return
    with multi_process_service() as environment:
        here = str(Path(__file__).resolve().parent)
        environment = {**environment, "PYTHONPATH": f"{here}:{environment.get('PYTHONPATH', '')}"}
        for ranks, sizes in SIZES.items():
            job = Job(sizes[:1] if quick else sizes, 3 if quick else 9)
            reason, rows = run_on_one_gpu(rank_job, job, ranks=ranks, environment=environment)[0]
            table = []
            for operator, size, times in rows:
                medians = {name: statistics.median(each) for name, each in times.items()}
                plain = next(value for name, value in medians.items() if "then" in name)
                for name, each in times.items():
                    shape = "x".join(map(str, size))
                    table.append([operator, shape, name, medians[name], min(each), max(each), plain / medians[name]])
            columns = ["operator", "m x k x n", "way", "median ms", "min", "max", "plain / this"]
            print_table(f"{ranks} ranks on {torch.cuda.get_device_name(0)}, bfloat16: {reason}", columns, table)


if __name__ == "__main__":
    # The ranks import this file by its name.
    import bench_micro_pipeline_gpu

    bench_micro_pipeline_gpu.main()
