"""Scheduled graphs on real gloo ranks: every shape of parallel training, each bit as before."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor
from torch.fx import GraphModule, Node

import counterpoint
from counterpoint.cost.model import CostModel
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.samples import sample_inputs
from counterpoint.ir.text import print_graph
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from tests.support.compare import compare
from tests.support.gloo import RanksByWorldSize

ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional
LAYERS, SIZE = 3, 8
MODEL = CostModel(latency_us=50.0, bandwidth_gbps=1.0)
"""Links on which both buckets and order matter for tensors of this size."""
Partition = Mapping[str, Sequence[int] | Sequence[Sequence[int]]]


def world(ranks: int) -> dict[str, tuple[int, ...]]:
    return {"dp": tuple(range(ranks))}


def own_group(partition: Partition) -> dict[str, tuple[int, ...]]:
    """The groups as rank 0 sees them."""
    return {name: tuple(g) if isinstance(g[0], int) else tuple(g[0]) for name, g in partition.items()}  # type: ignore


def shards(b: GraphBuilder, group: str) -> list[Node]:
    size = SIZE // len(b.groups[group])
    return [b.input(f"shard_{k}", (size, SIZE)) for k in range(LAYERS)]


def small(b: GraphBuilder, node: Node) -> Node:
    """Keeps sums of products within what is exact."""
    return b.call(ATEN.remainder.Scalar, node, 5)


def fsdp_forward(b: GraphBuilder) -> GraphModule:
    x = b.input("x", (SIZE, SIZE))
    for shard in shards(b, "dp"):
        x = small(b, b.call(ATEN.mm.default, x, b.all_gather(shard, "dp")))
    return b.finish(x)


def fsdp_backward(b: GraphBuilder) -> GraphModule:
    x, grads = b.input("x", (SIZE, SIZE)), []
    for shard in shards(b, "dp"):
        x = small(b, b.call(ATEN.mm.default, x, b.all_gather(shard, "dp")))
        grads.append(b.reduce_scatter(small(b, b.call(ATEN.mm.default, x, x)), "sum", "dp"))
    return b.finish(x, *grads)


def ddp_chain(b: GraphBuilder) -> GraphModule:
    x, sums = b.input("x", (SIZE, SIZE)), []
    for _ in range(LAYERS):
        x = small(b, b.call(ATEN.mm.default, x, x))
        sums.append(b.all_reduce(b.call(ATEN.div.Tensor, x, 2), "sum", "dp"))
    return b.finish(*sums)


def hybrid(b: GraphBuilder) -> GraphModule:
    """Scattered inside a node, then reduced over the nodes."""
    x, grads = b.input("x", (SIZE, SIZE)), []
    for shard in shards(b, "shard"):
        x = small(b, b.call(ATEN.mm.default, x, b.all_gather(shard, "shard")))
        scattered = b.reduce_scatter(small(b, b.call(ATEN.mm.default, x, x)), "sum", "shard")
        grads.append(b.all_reduce(scattered, "sum", "replicate"))
    return b.finish(x, *grads)


def tensor_parallel_inside(b: GraphBuilder) -> GraphModule:
    x = b.input("x", (SIZE, SIZE))
    for shard in shards(b, "dp"):
        partial = small(b, b.call(ATEN.mm.default, x, b.all_gather(shard, "dp")))
        x = small(b, b.all_reduce(partial, "sum", "tp"))
    return b.finish(x)


def tensor_parallel_backward(b: GraphBuilder) -> GraphModule:
    """The gradient of each weight stands before the exchange that it could be computed beside."""
    gradient, grads = b.input("gradient", (SIZE, SIZE)), []
    inputs = [(b.input(f"weight_{k}", (SIZE, SIZE)), b.input(f"saved_{k}", (SIZE, SIZE))) for k in range(LAYERS)]
    for weight, saved in inputs:
        grads.append(small(b, b.call(ATEN.mm.default, saved, gradient)))
        gradient = small(b, b.all_reduce(small(b, b.call(ATEN.mm.default, gradient, weight)), "sum", "tp"))
    return b.finish(gradient, *grads)


def experts(b: GraphBuilder) -> GraphModule:
    x, ranks = b.input("x", (SIZE, SIZE)), len(b.groups["ep"])
    splits = [SIZE // ranks] * ranks
    for shard in shards(b, "dp"):
        sent = b.wait(b.call(C10D.all_to_all_single.default, x, splits, splits, "ep"))
        done = small(b, b.call(ATEN.mm.default, sent, b.all_gather(shard, "dp")))
        x = b.wait(b.call(C10D.all_to_all_single.default, done, splits, splits, "ep"))
    return b.finish(x)


MESH = {"shard": ((0, 1), (2, 3)), "replicate": ((0, 2), (1, 3))}
CASES: dict[str, tuple[int, Callable[[GraphBuilder], GraphModule], Partition]] = {
    "fsdp forward": (2, fsdp_forward, world(2)),
    "fsdp backward": (2, fsdp_backward, world(2)),
    "fsdp backward of 4": (4, fsdp_backward, world(4)),
    "ddp": (2, ddp_chain, world(2)),
    "ddp of 4": (4, ddp_chain, world(4)),
    "hsdp": (4, hybrid, MESH),
    "tp in fsdp": (4, tensor_parallel_inside, {"tp": MESH["shard"], "dp": MESH["replicate"]}),
    "tp backward": (2, tensor_parallel_backward, {"tp": (0, 1)}),
    "tp backward of 4": (4, tensor_parallel_backward, {"tp": MESH["shard"]}),
    "experts": (4, experts, {"ep": MESH["shard"], "dp": MESH["replicate"]}),
}


def built(name: str) -> tuple[GraphModule, GraphBuilder]:
    _, make, partition = CASES[name]
    builder = GraphBuilder(own_group(partition))
    return make(builder), builder


def two_layers(x: Tensor, shards: list[Tensor]) -> Tensor:
    for shard in shards:
        gathered = funcol.all_gather_tensor(shard, 0, dist.group.WORLD)
        x = (x @ gathered).remainder(5)
    return funcol.all_reduce(x, "sum", dist.group.WORLD)


def compiled_with_sizes(codegen: str) -> list[tuple[bool, int]]:
    """For some numbers of rows whether compiled and eager agree in every bit, and how many graphs were compiled."""
    torch.compiler.reset()
    counterpoint.clear_reports()
    options = {"passes": "schedule-overlap", "latency_us": 50.0, "bandwidth_gbps": 1.0, "codegen": codegen}
    run = torch.compile(two_layers, backend="counterpoint", options={**options, "on_error": "raise"}, dynamic=True)
    shards = [torch.arange(SIZE * SIZE / 2).remainder(5).view(-1, SIZE) + k + dist.get_rank() for k in range(LAYERS)]
    found = []
    for rows in (6, 10, 34):
        x = torch.arange(rows * SIZE, dtype=torch.float32).remainder(5).view(rows, SIZE)
        same = torch.equal(run(x, shards), two_layers(x, shards))
        found.append((same, len(counterpoint.reports())))
    return found


def test_compiled_code_with_dynamic_sizes_computes_the_same(ranks: RanksByWorldSize) -> None:
    for answers in ranks(2).run(compiled_with_sizes, "eager"):
        assert answers == [(True, 1)] * 3


def products(gm: GraphModule) -> list[str]:
    return [node.name for node in gm.graph.nodes if node.target is ATEN.mm.default]


@pytest.mark.parametrize("options", ["mode=functional", "mode=custom", "bucket=false"])
@pytest.mark.parametrize("name", CASES)
def test_every_bit_is_as_before(ranks: RanksByWorldSize, name: str, options: str) -> None:
    size, _, partition = CASES[name]
    gm, builder = built(name)
    scheduled = copy.deepcopy(gm)
    pipeline = Pipeline.parse(f"schedule-overlap{{{options}}}")
    checked = CompileOptions(verify="full", on_error="raise")
    run_pipeline(scheduled, pipeline, options=checked, groups=GroupTable(builder.groups), cost_model=MODEL)
    assert print_graph(scheduled) != print_graph(gm)
    assert (products(scheduled) != products(gm)) == name.startswith("tp backward")
    inputs = [[value.remainder(5) for value in one] for one in sample_inputs(gm, size, seed=1)]
    compare(ranks(size), gm, scheduled, inputs, partition)
