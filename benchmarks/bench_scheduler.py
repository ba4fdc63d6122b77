"""What scheduling a graph costs: our pass with buckets, beside inductor's overlap scheduler with bucketing.

    python benchmarks/bench_scheduler.py [--quick] [--peer-collectives 300] [--only "fsdp backward" ...]

Processor seconds, in one run, by number of collectives, of four or five nodes each; linear growth has exponent 1.
Every node has a fake value of its own, without which inductor's scheduler takes them for one tensor. It cannot run on a
build without Triton; there, what it would ask Triton is answered with constants. It takes minutes on large graphs, so
it runs up to --peer-collectives only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import torch
from _bench import C10D, SHAPES, WORLD, growth_exponent, print_table
from _inductor_overlap import overlap_by_inductor
from torch.fx import Graph, GraphModule
from torch.nn import Module

from counterpoint._torch import FakeTensor
from counterpoint.cost.model import CostModel
from counterpoint.cost.presets import topology
from counterpoint.ir.groups import GroupTable
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline, run_pipeline

GROUPS = GroupTable({"dp": tuple(range(8)), "tp": tuple(range(8))})
MODEL = CostModel(topology=topology("h200x8-ib400"))
COLLECTIVES = (100, 300, 1000, 3000, 10000)
QUICK_COLLECTIVES = (100, 200)
PEER_COLLECTIVES = 300
GATHER, SCATTER = C10D.all_gather_into_tensor.default, C10D.reduce_scatter_tensor.default


def ours_s(graph: Graph, passes: str) -> float:
    """Processor seconds of the pass, without verification."""
    gm = GraphModule(Module(), graph)
    began = time.process_time()
    options = CompileOptions(verify="off", on_error="raise")
    run_pipeline(gm, Pipeline.parse(passes), options=options, groups=GROUPS, cost_model=MODEL)
    return time.process_time() - began


def peer_s(graph: Graph) -> float | str:
    """The same of inductor's scheduler, or what it raises."""
    gm = GraphModule(Module(), graph)
    began = time.process_time()
    try:
        overlap_by_inductor(gm, lambda *_: None)
    except Exception as error:
        return type(error).__name__
    return time.process_time() - began


def with_own_values(graph: Graph) -> Graph:
    """Every node gets a fake value of its own, of sizes that could be computed: all are square but the shards."""
    shards = {source for node in graph.nodes if node.target is GATHER for source in node.all_input_nodes}
    shards |= {node for node in graph.nodes if node.target is SCATTER}
    shards |= {user for node in graph.nodes if node.target is SCATTER for user in node.users}
    for node in graph.nodes:
        shared = node.meta.get("val")
        if isinstance(shared, FakeTensor):
            with shared.fake_mode:
                node.meta["val"] = torch.empty(64 // WORLD if node in shards else 64, 64)
    return graph


def rows(sizes: tuple[int, ...], most: int, only: list[str]) -> Iterator[list[Any]]:
    """One row a graph and size."""
    import torch.distributed as dist

    from counterpoint._torch import fake_store

    dist.init_process_group("fake", store=fake_store(), rank=0, world_size=8)
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    for shape, make in SHAPES.items():
        if only and shape not in only:
            continue
        collectives: list[int] = []
        seconds: list[float] = []
        for size in sizes:
            collectives.append(size)
            nodes = len(make(size).nodes)
            seconds.append(ours_s(with_own_values(make(size)), "schedule-overlap{mode=custom}"))
            order = ours_s(with_own_values(make(size)), "schedule-overlap{bucket=false}")
            peer: float | str = peer_s(renamed(with_own_values(make(size)), name)) if size <= most else "-"
            slope = growth_exponent(collectives, seconds) if len(seconds) > 1 else "-"
            ratio = peer / seconds[-1] if isinstance(peer, float) else "-"
            yield [shape, nodes, size, order, seconds[-1], slope, peer, ratio]
    dist.destroy_process_group()


def renamed(graph: Graph, name: str) -> Graph:
    """The graph with all groups being the world, which the peer looks up."""
    for node in graph.nodes:
        node.args = tuple(name if isinstance(arg, str) and arg in GROUPS else arg for arg in node.args)
    return graph


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small graphs only")
    parser.add_argument("--peer-collectives", type=int, default=PEER_COLLECTIVES, help="largest graph for the peer")
    parser.add_argument("--only", nargs="+", default=[], choices=list(SHAPES), help="these graphs alone")
    asked = parser.parse_args()
    columns = ["graph", "nodes", "collectives", "order only s", "buckets s", "exponent", "inductor s", "inductor/ours"]
    sizes = QUICK_COLLECTIVES if asked.quick else COLLECTIVES
    print_table("scheduling: processor seconds", columns, rows(sizes, asked.peer_collectives, asked.only))


if __name__ == "__main__":
    main()
