"""Pipelined operators on one GPU: 2 and 4 ranks under the Multi-Process Service, gloo for the host, symmetric memory.

    python benchmarks/bench_micro_pipeline_gpu.py [--quick]

In the same run and in turns: the matmul alone, the collective and then the matmul (torch's low-contention forms),
torch's fused operators, ours at several numbers of chunks, and what our pass chooses: `micro-pipeline-tp` with a table
of costs that was measured on the same ranks a moment before, on the graph of the collective and the matmul. The cost of
the collective is what it adds to the matmul: called by itself again and again, it waits for the host. What is left
alone runs as the collective and the matmul do; what is pipelined runs as the graph that the pass writes. Each way is
checked against the plain one before it is timed. One device stands in for several, so copies cost memory bandwidth and
not a link's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from _bench import print_table
from torch import Tensor

from counterpoint._torch import register_operators, symmetric_workspace
from counterpoint.cost.measured import MeasuredTable, operator_key
from counterpoint.cost.model import CostModel
from counterpoint.cost.table import layout_of
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.ops import Kind
from counterpoint.passes.ledger import VerdictKind
from counterpoint.passes.pipeline import Pipeline, run_pipeline
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
Way = Callable[[], Tensor]
Ways = dict[str, Way]


class Job(NamedTuple):
    """What every rank measures."""

    sizes: tuple[tuple[int, int, int], ...]
    repeats: int


class Case(NamedTuple):
    """One product and its collective: the ways to it, and the parts that the choice is made from."""

    kind: Kind
    nbytes: int
    """Of the whole tensor that is communicated."""
    operands: tuple[Tensor, Tensor]
    ways: Ways


def gathers(m: int, k: int, n: int) -> Case:
    """Ways to a product of what is gathered."""
    ranks, group = dist.get_world_size(), dist.group.WORLD
    name, bf16, symm = group.group_name, torch.bfloat16, torch.ops.symm_mem
    shard = torch.randn(m // ranks, k, device="cuda", dtype=bf16)
    other = torch.randn(k, n, device="cuda", dtype=bf16)
    whole = torch.randn(m, k, device="cuda", dtype=bf16)

    def ours(chunks: int) -> Way:
        factor = Factor(other=other, bias=None, out_dtype=bf16)
        call = Gather(shard=shard, dim=-2, ranks=ranks, left=True, factors=(factor,), keep=False, chunks=chunks)
        return lambda: symmetric.gather_matmul(call, group)[0]

    def gathered() -> Tensor:
        return WAIT(symm._low_contention_all_gather.default(shard, name))

    ways = {
        "matmul alone": lambda: torch.mm(whole, other),
        "gather, then matmul": lambda: torch.mm(gathered(), other),
        "torch's fused": lambda: symm.fused_all_gather_matmul.default(shard, [other], 0, name, return_A=False)[1][0],
        **{f"ours, {chunks} chunks": ours(chunks) for chunks in (1, 2, 4)},
    }
    return Case(Kind.ALL_GATHER, whole.nbytes, (shard, other), ways)


def scatters(m: int, k: int, n: int) -> Case:
    """Ways to a product that is reduced and scattered."""
    group, symm = dist.group.WORLD, torch.ops.symm_mem
    name = group.group_name
    left = torch.randn(m, k, device="cuda", dtype=torch.bfloat16) / k**0.5
    right = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    call = Partial(lefts=(left,), rights=(right,), bias=None, out_dtype=None)

    def scattered(tensor: Tensor) -> Tensor:
        return WAIT(symm._low_contention_reduce_scatter.default(tensor, "sum", name))

    ways = {
        "matmul alone": lambda: torch.mm(left, right),
        "matmul, then scatter": lambda: scattered(torch.mm(left, right)),
        "torch's fused": lambda: symm.fused_matmul_reduce_scatter.default(left, right, "sum", 0, name),
        "ours": lambda: symmetric.matmul_scatter(call, -2, "sum", group),
    }
    return Case(Kind.REDUCE_SCATTER, m * n * left.element_size(), (left, right), ways)


def plain_name(ways: Iterable[str]) -> str:
    """The way that fuses nothing."""
    return next(name for name in ways if "then" in name)


def choose(case: Case, repeats: int) -> tuple[str, Way]:
    """What the pass does with the graph of the collective and the matmul, by costs that are measured here and now."""
    both = {"matmul": case.ways["matmul alone"], "unfused": case.ways[plain_name(case.ways)]}
    us = {name: statistics.median(each) * 1e3 for name, each in timed(both, repeats).items()}
    waited_us = max(0.0, us["unfused"] - us["matmul"])
    ranks, name = tuple(range(dist.get_world_size())), dist.group.WORLD.group_name
    builder = GraphBuilder({name: ranks}, device="cuda")
    left, right = (
        builder.input(f"operand{i}", tensor.shape, tensor.dtype, tensor.stride())
        for i, tensor in enumerate(case.operands)
    )
    if case.kind is Kind.ALL_GATHER:
        result = product = builder.call(torch.ops.aten.mm.default, builder.all_gather(left, name), right)
    else:
        product = builder.call(torch.ops.aten.mm.default, left, right)
        result = builder.reduce_scatter(product, "sum", name)
    curves = {(case.kind, layout_of(ranks)): ((float(case.nbytes), waited_us),)}
    table = MeasuredTable(curves, {operator_key(product) or "": us["matmul"]}, device_type="cuda")
    gm = builder.finish(result)
    report = run_pipeline(
        gm, Pipeline.parse("micro-pipeline-tp"), groups=builder.groups, cost_model=CostModel(table=table)
    )
    (entry,) = report.ledger
    if entry.verdict.kind is VerdictKind.PIPELINED:
        return "pipelined", lambda: gm(*case.operands)[0]
    return f"left alone: {entry.verdict.code}, {entry.verdict.detail}", case.ways[plain_name(case.ways)]


def check(ways: Ways) -> None:
    """Raise where a way gives something else than the plain one."""
    plain = ways[plain_name(ways)]().float()
    for name, way in ways.items():
        worst = 0.0 if name == "matmul alone" else (way().float() - plain).abs().max().item()
        if worst > 0.02 * plain.abs().max().item():
            raise SystemExit(f"{name} differs by up to {worst}")


def timed(ways: Ways, repeats: int) -> dict[str, list[float]]:
    """Milliseconds a call, in turns; the last rank's count."""
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
            case = make(m, k, n)
            chosen, way = choose(case, job.repeats)
            ways = {**case.ways, "what our pass chooses": way}
            check(ways)
            rows.append((name, (m, k, n), chosen, timed(ways, job.repeats)))
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
            for operator, size, chosen, times in rows:
                medians = {name: statistics.median(each) for name, each in times.items()}
                for name, each in times.items():
                    shape, ratio = "x".join(map(str, size)), medians[plain_name(times)] / medians[name]
                    note = chosen if name == "what our pass chooses" else ""
                    table.append([operator, shape, name, medians[name], min(each), max(each), ratio, note])
            columns = ["operator", "m x k x n", "way", "median ms", "min", "max", "plain / this", "choice"]
            print_table(f"{ranks} ranks on {torch.cuda.get_device_name(0)}, bfloat16: {reason}", columns, table)


if __name__ == "__main__":
    # The ranks import this file by its name.
    import bench_micro_pipeline_gpu

    bench_micro_pipeline_gpu.main()
