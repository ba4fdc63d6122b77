"""The compute of a graph as a whole: everything that is computed, and nothing that is communicated."""

from __future__ import annotations

import operator

import pytest
import torch

from counterpoint.errors import CaptureError
from counterpoint.ir import ops
from counterpoint.ir.build import GraphBuilder
from counterpoint.runtime.graph_times import measure_compute, without_communication

ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional


def test_what_is_only_sent_is_still_made_and_nobody_communicates() -> None:
    b = GraphBuilder({"dp": (0, 1)})
    x, shard = b.input("x", (6, 8)), b.input("shard", (4, 8))
    y = b.call(ATEN.mm.default, x, b.all_gather(shard, "dp"))
    own = b.wait(b.call(C10D.all_reduce_.default, b.call(ATEN.clone.default, y), "sum", "dp"))
    both = b.call(C10D.all_gather_into_tensor_coalesced.default, [shard, b.call(ATEN.relu.default, shard)], 2, "dp")
    parts = [b.wait(b.call(operator.getitem, both, k)) for k in range(2)]
    gm = b.finish(own, b.reduce_scatter(b.call(ATEN.mm.default, parts[0], parts[1]), "sum", "dp"))
    alone, values = without_communication(gm)
    left = [node.target for node in alone.graph.nodes]
    assert not any(ops.is_collective(node) or ops.is_wait(node) for node in alone.graph.nodes)
    assert left.count(ATEN.mm.default) == 2
    (first, second), sent = alone(*values)
    assert (tuple(first.shape), tuple(second.shape)) == ((6, 8), (4, 8))
    # The shard twice, what is reduced in place, and the second product.
    assert [tuple(one.shape) for one in sent] == [(4, 8), (6, 8), (4, 8), (4, 8), (8, 8)]
    assert len(list(gm.graph.nodes)) > len(left)


def test_sizes_go_by_their_hints_and_a_graph_takes_some_time() -> None:
    b = GraphBuilder({"dp": (0, 1)})
    rows = b.symbol("rows", 16)
    x = b.input("x", (rows, 8))
    gm = b.finish(b.all_gather(b.call(ATEN.relu.default, x), "dp"))
    alone, values = without_communication(gm)
    assert [tuple(one.shape) for one in alone(*values)[0]] == [(32, 8)]
    assert measure_compute(gm, repeats=1, codegen="eager") > 0


def test_a_graph_without_shapes_is_named() -> None:
    b = GraphBuilder({"dp": (0, 1)})
    x = b.input("x", (4, 8))
    gm = b.finish(b.all_gather(x, "dp"))
    del x.meta["val"]
    with pytest.raises(CaptureError, match="shape"):
        without_communication(gm)
