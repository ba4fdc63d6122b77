"""Compile-time cost of the bucketing passes, beside inductor's on the same graphs in the same run.

python benchmarks/bench_bucketing.py [--quick]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from _bench import SHAPES, growth_exponent, measure, print_table
from torch.fx import Graph, GraphModule
from torch.nn import Module

from counterpoint.ir.groups import GroupTable
from counterpoint.ir.ops import is_collective
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline, run_pipeline

GROUPS = GroupTable({"dp": tuple(range(8)), "tp": tuple(range(8))})
CASES = (
    ("ddp", "bucket-all-reduce", "bucket_all_reduce"),
    ("fsdp forward", "bucket-all-gather", "bucket_all_gather"),
    ("fsdp backward", "bucket-reduce-scatter", "bucket_reduce_scatter"),
)
# The synthetic tensors have 16 KB; these caps give what 25 MB and 2000 MB give for parameters of 512x512 floats.
CAPS_MB = {"25 MB": 25 / 64, "2000 MB": 2000 / 64}


def ours(graph: Graph, name: str, cap_mb: float) -> int:
    """Run our pass as the backend would, with its checks; returns the collectives left."""
    gm = GraphModule(Module(), graph)
    pipeline = Pipeline.parse(f"{name}{{cap-mb={cap_mb}}}")
    run_pipeline(gm, pipeline, options=CompileOptions(verify="structural", on_error="raise"), groups=GROUPS)
    return sum(map(is_collective, gm.graph.nodes))


def theirs(graph: Graph, name: str, cap_mb: float) -> int:
    """Run inductor's pass."""
    from torch._inductor.fx_passes import bucketing

    gm = GraphModule(Module(), graph)
    getattr(bucketing, name)(gm, lambda _: cap_mb)
    return sum(map(is_collective, gm.graph.nodes))


def timed(run: Callable[..., int], shape: str, size: int, *rest: Any) -> tuple[int, float, float]:
    """Collectives left, processor seconds and growth in MiB. The graph is built beforehand."""
    graph = SHAPES[shape](size)
    done = measure(lambda: run(graph, *rest), repeats=1)
    return done.result, done.seconds, done.grown_mib


def rows(sizes: list[int], peer_up_to: int) -> Iterator[list[Any]]:
    """One row a graph, cap and size."""
    for shape, own, peer in CASES:
        for cap, cap_mb in CAPS_MB.items():
            times: list[float] = []
            for size in sizes:
                left, seconds, grown = timed(ours, shape, size, own, cap_mb)
                times.append(seconds)
                slope = growth_exponent(sizes[: len(times)], times) if len(times) > 1 else "-"
                row = [shape, cap, size, left, seconds, slope, grown]
                if size <= peer_up_to:
                    peer_left, peer_seconds, peer_grown = timed(theirs, shape, size, peer, cap_mb)
                    row += [peer_left, peer_seconds, peer_grown, f"{peer_seconds / seconds:.1f}x"]
                yield row + ["-"] * (11 - len(row))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small graphs only")
    quick = parser.parse_args().quick
    sizes = [100, 300] if quick else [100, 300, 1000, 3000, 10000]
    timed(ours, "ddp", 50, "bucket-all-reduce", 1.0)
    columns = ["graph", "cap", "before", "left", "ours s", "exponent", "MiB", "left", "inductor s", "MiB", "ratio"]
    print_table("bucketing: processor seconds of the pass", columns, rows(sizes, 300 if quick else 1000))


if __name__ == "__main__":
    main()
