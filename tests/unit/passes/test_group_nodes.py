"""Groups that the graph computes, as with `compile_on_one_rank`: each collective finds its group by its own call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor
from torch.fx import Node

from counterpoint.capture.world import fake_world
from counterpoint.ir.build import GraphBuilder, collectives_in
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline, run_pipeline

C10D = torch.ops._c10d_functional
PIPELINE = "bucket-all-gather,bucket-reduce-scatter,bucket-all-reduce,schedule-waits"

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops._dtensor, "mesh_get_process_group"),
    reason="torch finds no group of a mesh in a graph before 2.13",
)


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    with fake_world(2):
        yield


def found_group(builder: GraphBuilder, mesh: Node) -> Node:
    node = builder.graph.call_function(torch.ops._dtensor.mesh_get_process_group.default, (mesh, 0))
    node.meta["val"] = dist.group.WORLD
    return node


def test_collectives_of_one_group_merge_though_each_finds_it_by_itself() -> None:
    builder = GraphBuilder({dist.group.WORLD.group_name: range(2)})
    x, y = builder.input("x", (4,)), builder.input("y", (8,))
    mesh = builder.graph.placeholder("mesh")
    mesh.meta["val"] = object()
    waits = []
    for operator, size in (
        (C10D.all_gather_into_tensor, [2]),
        (C10D.reduce_scatter_tensor, [2]),
        (C10D.all_reduce, []),
    ):
        for source in (x, y):
            # The second group is found behind the first collective, so that it stands between the two.
            payload = builder.call(torch.ops.aten.neg.default, source)
            reduction = [] if operator is C10D.all_gather_into_tensor else ["sum"]
            start = builder.call(operator.default, payload, *reduction, *size, found_group(builder, mesh))
            waits.append(builder.wait(start))
    gm = builder.finish(*waits)
    options = CompileOptions(verify="full", on_error="raise")
    report = run_pipeline(gm, Pipeline.parse(PIPELINE), options=options, groups=builder.groups)
    assert str(report.ledger) == "6 bucketed"
    assert len(collectives_in(gm.graph)) == 3
    gm.graph.lint()
