"""Inductor's names on real gloo ranks: whatever a door emits computes what the single collectives did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.fx import Graph, GraphModule

from counterpoint.inductor.fx_passes import bucketing, ddp_fusion
from counterpoint.ir.build import GraphBuilder, collectives_in
from counterpoint.ir.samples import sample_inputs
from tests.support.gloo import RanksByWorldSize

ATEN = torch.ops.aten
SHAPES = ((4,), (8, 3), (12, 1, 2), (4, 5))
MODES = ("default", "custom_ops", "custom_ops_multidtype", "coalesced")


def gathers(b: GraphBuilder, group: str, dtypes: Any) -> list[Any]:
    xs = [b.input(f"x{i}", shape, dtypes[i % len(dtypes)]) for i, shape in enumerate(SHAPES)]
    return [b.all_gather(x, group) for x in xs]


def casts_and_gathers(b: GraphBuilder, group: str, dtypes: Any) -> list[Any]:
    xs = [b.input(f"x{i}", shape) for i, shape in enumerate(SHAPES)]
    sent = [b.call(torch.ops.prims.convert_element_type.default, x, dtypes[0]) for x in xs]
    return [b.all_gather(x, group) for x in sent]


def scatters(b: GraphBuilder, group: str, dtypes: Any) -> list[Any]:
    xs = [b.input(f"x{i}", shape, dtypes[0]) for i, shape in enumerate(SHAPES)]
    return [b.reduce_scatter(x, "sum", group) for x in xs]


def gradients(b: GraphBuilder, group: str, dtypes: Any) -> list[Any]:
    xs = [b.input(f"x{i}", shape, dtypes[0]) for i, shape in enumerate(SHAPES)]
    halves = [b.call(ATEN.div.Tensor, x, 2) for x in xs]
    return [b.call(ATEN.mul.Tensor, b.all_reduce(half, "sum", group), 3) for half in halves]


def through_the_door(
    make: Callable[..., list[Any]], dtypes: Any, run: Callable[[GraphModule], None]
) -> tuple[int, int]:
    """On a rank: collectives left, and outputs that differ from those of the graph before."""
    assert dist.group.WORLD is not None
    name = dist.group.WORLD.group_name
    results = []
    for rewritten in (False, True):
        b = GraphBuilder({name: range(dist.get_world_size())})
        gm = b.finish(*make(b, name, dtypes))
        given = sample_inputs(gm, dist.get_world_size(), seed=5)[dist.get_rank()]
        if rewritten:
            run(gm)
            gm.graph.lint()
            gm.recompile()
        with torch.no_grad():
            results.append(gm(*given))
    differ = sum(one.dtype is not two.dtype or not torch.equal(one, two) for one, two in zip(*results, strict=True))
    return len(collectives_in(gm.graph)), differ


def merged(make: Callable[..., list[Any]], dtypes: Any, function: str, mode: str) -> tuple[int, int]:
    return through_the_door(make, dtypes, lambda gm: getattr(bucketing, function)(gm, mode=mode))


def fused(dtypes: Any, names: list[Callable[..., None] | str]) -> tuple[int, int]:
    def run(gm: GraphModule) -> None:
        graph: Graph = gm.graph
        ddp_fusion.fuse_ddp_communication(graph, names, 25)

    return through_the_door(gradients, dtypes, run)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("mode", MODES)
def test_gathers(ranks: RanksByWorldSize, mode: str, world: int) -> None:
    for make in (gathers, casts_and_gathers):
        answers = ranks(world).run(merged, make, (torch.bfloat16,), "bucket_all_gather", mode)
        assert answers == [(1, 0)] * world
    mixed = ranks(world).run(merged, gathers, (torch.bfloat16, torch.float32), "bucket_all_gather", mode)
    assert mixed == [(1 if mode == "custom_ops_multidtype" else 2, 0)] * world


@pytest.mark.parametrize("mode", ["default", "custom_ops", "coalesced"])
def test_scatters(ranks: RanksByWorldSize, mode: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        assert ranks(4).run(merged, scatters, (dtype,), "bucket_reduce_scatter", mode) == [(1, 0)] * 4


def test_reductions(ranks: RanksByWorldSize) -> None:
    for dtype in (torch.float32, torch.float16):
        assert ranks(4).run(merged, gradients, (dtype,), "bucket_all_reduce", "all") == [(1, 0)] * 4


@pytest.mark.parametrize("name", ["fuse_ddp_with_concat_op", "fuse_ddp_with_coalesced_op"])
def test_fused_gradients(ranks: RanksByWorldSize, name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert ranks(2).run(fused, (dtype,), [name, "schedule_comm_wait"]) == [(1, 0)] * 2
