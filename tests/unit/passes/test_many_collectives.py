"""Ten thousand collectives: the passes get through, merge what they should, and lose none."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from counterpoint._torch import FakeTensorMode
from counterpoint.ir.build import collectives_in
from counterpoint.ir.groups import GroupTable
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline, run_pipeline

C10D, ATEN = torch.ops._c10d_functional, torch.ops.aten
COUNT = 10_000
BYTES = 64 * 64 * 4
CAP_MB = 50 * BYTES / 2**20
GROUPS = GroupTable({"dp": tuple(range(4)), "tp": tuple(range(4))})


def many(target: torch._ops.OpOverload, *rest: object) -> GraphModule:
    """Collectives over two groups in turn, each of a value of its own kind of work. One fake value stands for all."""
    with FakeTensorMode():
        value = torch.empty(64, 64)
    graph = Graph()

    def valued(node: Node) -> Node:
        node.meta["val"] = value
        return node

    x = valued(graph.placeholder("x"))
    waits = []
    for k in range(COUNT):
        sent = valued(graph.call_function(ATEN.mul.Tensor, (x, k)))
        start = valued(graph.call_function(target, (sent, *rest, ("dp", "tp")[k % 2])))
        waits.append(valued(graph.call_function(C10D.wait_tensor.default, (start,))))
    graph.output(tuple(waits))
    return GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize(
    ("passes", "left"),
    [(f"bucket-all-reduce{{cap-mb={CAP_MB}}}", 200), (f"fuse-ddp{{cap-mb={CAP_MB} first-cap-mb={CAP_MB}}}", 200)],
)
def test_ten_thousand_collectives(passes: str, left: int) -> None:
    gm = many(C10D.all_reduce.default, "sum")
    options = CompileOptions(verify="structural", on_error="raise")
    report = run_pipeline(gm, Pipeline.parse(passes), options=options, groups=GROUPS)
    assert len(collectives_in(gm.graph)) == left
    assert Counter(entry.verdict.kind.value for entry in report.ledger) == {"bucketed": COUNT}
