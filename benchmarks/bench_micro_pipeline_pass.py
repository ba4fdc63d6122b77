"""The pass that pipelines matmuls beside inductor's: what it costs, and what it leaves of captured decoders.

    python benchmarks/bench_micro_pipeline_pass.py [--quick] [--full]

Cost: chains of gather, matmul, matmul and reduce-scatter along dim 0, or dim 1 of three, over 8 ranks. Processor
seconds of `micro-pipeline-tp{when=always}` without its verification, of inductor's pass, and of both under inductor's
names with its rule of what plain overlap hides. Inductor's needs NCCL and symmetric memory, so both are pretended. At
10,000 it takes minutes, with its rule at 3,000 gigabytes; --full runs these two as well.

Found: graphs of a decoder in Llama's shape under tensor and sequence parallelism, behind inductor's rewrites, which is
where its pass stands. Collectives that are left, and why ours left them.
"""

from __future__ import annotations

import argparse
import gc
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from _bench import ATEN, C10D, growth_exponent, print_table
from torch._inductor import config
from torch._inductor.fx_passes import micro_pipeline_tp as inductors
from torch.distributed._symmetric_memory import _test_mode
from torch.fx import GraphModule, Node
from torch.testing._internal.distributed.fake_pg import FakeStore

from counterpoint.capture.compiled import capture_compiled
from counterpoint.capture.example_models import Decoder, DecoderConfig, parallelize_decoder
from counterpoint.capture.world import fake_world
from counterpoint.inductor.fx_passes import micro_pipeline_tp as door
from counterpoint.ir import ops
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.edit import GraphEditor
from counterpoint.options import CompileOptions
from counterpoint.passes.base import PassContext
from counterpoint.passes.book import LedgerBook
from counterpoint.passes.ledger import VerdictKind
from counterpoint.passes.pipeline import Pipeline, run_pipeline

WORLD, WIDTH, ROWS, BATCH = 8, 64, 16, 2
PASS = "micro-pipeline-tp{when=always}"
"""Everything that could be pipelined is, as by inductor's pass."""


class Chain(GraphBuilder):
    """Writes nodes with values of a given shape, which is quicker than computing them."""

    def __init__(self) -> None:
        super().__init__({"0": range(WORLD)})

    def node(self, target: Any, *args: Any, shape: Any) -> Node:
        """A call; for several results `shape` is a list."""
        made = self.graph.call_function(target, args)
        with self.fake_mode:
            value: Any = [torch.empty(s) for s in shape] if isinstance(shape, list) else torch.empty(shape)
        made.meta["val"] = value
        return made

    def across(self, value: Node, cut: int, joined: int, part: tuple[int, ...], whole: tuple[int, ...]) -> Node:
        """Pieces along one dim, joined along another."""
        # Dims that are zero are not written, as torch leaves them out.
        split = self.node(ATEN.split.Tensor, value, part[cut], *([cut] if cut else []), shape=[part] * WORLD)
        pieces = [self.node(operator.getitem, split, i, shape=part) for i in range(WORLD)]
        return self.node(ATEN.cat.default, pieces, *([joined] if joined else []), shape=whole)


def rows(b: Chain, flow: Node, up: Node, down: Node) -> Node:
    """A layer along dim 0."""
    part, whole = (ROWS, WIDTH), (ROWS * WORLD, WIDTH)
    start = b.node(C10D.all_gather_into_tensor.default, flow, WORLD, "0", shape=whole)
    hidden = b.node(ATEN.mm.default, b.node(C10D.wait_tensor.default, start, shape=whole), up, shape=whole)
    partial = b.node(ATEN.mm.default, b.node(ATEN.relu.default, hidden, shape=whole), down, shape=whole)
    start = b.node(C10D.reduce_scatter_tensor.default, partial, "sum", WORLD, "0", shape=part)
    return b.node(C10D.wait_tensor.default, start, shape=part)


def sequence(b: Chain, flow: Node, up: Node, down: Node) -> Node:
    """A layer along dim 1."""
    part, whole = (BATCH, ROWS, WIDTH), (BATCH, ROWS * WORLD, WIDTH)
    line, flat = (BATCH * WORLD, ROWS, WIDTH), (BATCH * ROWS * WORLD, WIDTH)

    def product(value: Node, weight: Node) -> Node:
        made = b.node(ATEN.mm.default, b.node(ATEN.reshape.default, value, flat, shape=flat), weight, shape=flat)
        return b.node(ATEN.reshape.default, made, whole, shape=whole)

    start = b.node(C10D.all_gather_into_tensor.default, flow, WORLD, "0", shape=line)
    gathered = b.across(b.node(C10D.wait_tensor.default, start, shape=line), 0, 1, part, whole)
    hidden = b.node(ATEN.relu.default, product(gathered, up), shape=whole)
    ordered = b.across(product(hidden, down), 1, 0, part, line)
    start = b.node(C10D.reduce_scatter_tensor.default, ordered, "sum", WORLD, "0", shape=part)
    return b.node(C10D.wait_tensor.default, start, shape=part)


def chain(collectives: int, dim: int) -> GraphModule:
    """A chain of layers of two collectives each."""
    b = Chain()
    flow = b.input("x", (ROWS, WIDTH) if dim == 0 else (BATCH, ROWS, WIDTH))
    weights = [b.input(f"w{i}", (WIDTH, WIDTH)) for i in range(16)]
    for i in range(collectives // 2):
        flow = (rows if dim == 0 else sequence)(b, flow, weights[2 * i % 16], weights[(2 * i + 1) % 16])
    return b.finish(flow)


@contextmanager
def pretended(world: int) -> Iterator[None]:
    """A group that only pretends, and what inductor's pass asks for."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        with _test_mode(), mock.patch.object(dist, "is_nccl_available", return_value=True):
            yield
    finally:
        dist.destroy_process_group()


def timed(run: Callable[[], object]) -> float:
    """Processor seconds, with the collector at rest as in a compile of ours."""
    gc.collect()
    gc.disable()
    began = time.process_time()
    run()
    took = time.process_time() - began
    gc.enable()
    return took


def left(gm: GraphModule) -> int:
    """Collectives in the graph; pipelined operators, which do the work of some, do not count."""
    return sum(str(node.target).startswith("_c10d_functional.") and ops.is_collective(node) for node in gm.graph.nodes)


def ours(gm: GraphModule) -> float:
    """Seconds of our pass."""
    groups, options = GraphBuilder({"0": range(WORLD)}).groups, CompileOptions()
    (item,) = Pipeline.parse(PASS).passes
    page = LedgerBook.open(gm.graph, groups=groups).page(item.text)

    def run() -> None:
        editor = GraphEditor(gm.graph, groups)
        item.run(PassContext(gm=gm, editor=editor, options=options, groups=groups, ledger=page))

    return timed(run)


def under_inductors_name(run: Any, rule: bool) -> Callable[[GraphModule], float]:
    """Seconds of the pass of a module in the form of inductor's, with or without its rule."""

    def measured(gm: GraphModule) -> float:
        with pretended(WORLD), config.patch(reorder_for_compute_comm_overlap=rule):
            return timed(lambda: run.micro_pipeline_tp_pass(gm.graph))

    return measured


WAYS: dict[str, Callable[[GraphModule], float]] = {
    "ours": ours,
    "inductor": under_inductors_name(inductors, rule=False),
    "our door + rule": under_inductors_name(door, rule=True),
    "inductor + rule": under_inductors_name(inductors, rule=True),
}
PEERS = (("ours", "inductor"), ("our door + rule", "inductor + rule"))


def cost(sizes: list[int], most: dict[str, int]) -> None:
    """The table of costs."""
    table = []
    for dim in (0, 1):
        spent: dict[str, list[float]] = {name: [] for name in WAYS}
        for size in sizes:
            row: list[Any] = [dim, size]
            for name, way in WAYS.items():
                if size <= most.get(name, size):
                    gm = chain(size, dim)
                    nodes = len(gm.graph.nodes)
                    spent[name].append(way(gm))
                    row.append(f"{spent[name][-1]:.3g} ({left(gm)} left)")
                else:
                    row.append("not run")
            ratios = [
                f"{spent[peer][-1] / spent[mine][-1]:.1f}x" for mine, peer in PEERS if size <= most.get(peer, size)
            ]
            table.append([dim, size, nodes, *row[2:], " / ".join(ratios)])
        growth = [f"n^{growth_exponent(sizes[: len(each)], each):.2f}" for each in spent.values() if len(each) > 1]
        table.append([dim, "growth", "", *growth])
    columns = ["dim", "collectives", "nodes", *(f"{name} s" for name in WAYS), "inductor / ours"]
    print_table("cost of the pass", columns, table)


# -- what is found ----------------------------------------------------------------------------------------------------


def decoders(world: int, layers: int) -> Iterator[tuple[str, GraphModule, Any]]:
    """The forward and the backward graph of a decoder."""
    heads = max(8, world)
    config = DecoderConfig(
        vocabulary=2048, dim=512, layers=layers, heads=2 * heads, kv_heads=heads, hidden=1536, positions=256
    )
    with fake_world(world) as here:
        with torch.device("meta"):
            model = parallelize_decoder(Decoder(config), here.mesh())
        tokens = torch.empty(2, 256, dtype=torch.int64, device="meta")
        for graph in capture_compiled(model, (tokens,), stage="post_grad", fullgraph=True):
            yield f"{graph.role}, {world} ranks, {layers} layers", graph.gm, graph.groups


def found(worlds: list[tuple[int, int]]) -> None:
    """The table of what is left."""
    table = []
    for world, layers in worlds:
        graphs = list(decoders(world, layers))
        theirs = list(decoders(world, layers))
        with pretended(world):
            for (name, gm, groups), (_, other, _) in zip(graphs, theirs, strict=True):
                before = left(gm)
                inductors.micro_pipeline_tp_pass(other.graph)
                report = run_pipeline(gm, Pipeline.parse(PASS), groups=groups)
                alone = [entry.verdict for entry in report.ledger if entry.verdict.kind is VerdictKind.LEFT_ALONE]
                why = Counter(f"{verdict.code} ({verdict.detail})" for verdict in alone)
                reasons = "; ".join(f"{count} {reason}" for reason, count in why.items())
                table.append([name, before, left(other), left(gm), reasons])
    columns = ["graph", "collectives", "left by inductor", "left by ours", "why"]
    print_table("captured decoders under tensor and sequence parallelism", columns, table)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small graphs, one world")
    parser.add_argument("--full", action="store_true", help="inductor's pass at 10,000 collectives too")
    asked = parser.parse_args()
    most = {"inductor": 10000 if asked.full else 3000, "inductor + rule": 3000 if asked.full else 1000}
    cost([100, 300] if asked.quick else [1000, 3000, 10000], most)
    found([(8, 1)] if asked.quick else [(8, 2), (64, 6)])


if __name__ == "__main__":
    main()
