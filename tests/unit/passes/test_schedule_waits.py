"""Waits stand just before their first use, nothing else moves, and no hazard is crossed."""

from __future__ import annotations

import operator
import time
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node

from counterpoint.ir import ops
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.evaluate import evaluate
from counterpoint.ir.samples import sample_inputs
from counterpoint.ir.text import print_graph
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.passes.report import PipelineReport

ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional


@pytest.fixture
def builder() -> GraphBuilder:
    return GraphBuilder({"dp": range(2)})


def scheduled(gm: GraphModule, builder: GraphBuilder, *, runs: bool = True) -> PipelineReport:
    """Run the pass; the graph must compute the same, and a second run must find nothing to do."""
    options = CompileOptions(verify="full" if runs else "structural", on_error="raise")
    before = print_graph(gm)
    inputs = sample_inputs(gm, 2) if runs else []
    expected = evaluate(gm, inputs, builder.groups) if runs else []
    report = run_pipeline(gm, Pipeline.parse("schedule-waits"), options=options, groups=builder.groups)
    for left, right in zip(expected, evaluate(gm, inputs, builder.groups) if runs else [], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
    after = print_graph(gm)
    assert (after == before) == (moved(report) == 0)
    again = run_pipeline(gm, Pipeline.parse("schedule-waits"), options=options, groups=builder.groups)
    assert moved(again) == 0
    assert print_graph(gm) == after
    return report


def moved(report: PipelineReport) -> int:
    return report.passes[0].edits["moved"]


def names(gm: GraphModule) -> list[str]:
    """The calls in order, by their short names."""
    return [str(node.target).split(".")[1] for node in gm.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


def test_a_wait_moves_past_what_does_not_need_it(builder: GraphBuilder) -> None:
    x = builder.input("x", (4,))
    wait = builder.all_reduce(x, group="dp")
    work = builder.call(ATEN.exp.default, x)
    gm = builder.finish(builder.call(ATEN.add.Tensor, wait, 1), work)
    assert moved(scheduled(gm, builder)) == 1
    assert names(gm) == ["all_reduce", "exp", "wait_tensor", "add"]


def test_a_wait_that_stands_right_stays(builder: GraphBuilder) -> None:
    x = builder.input("x", (4,))
    first = builder.call(ATEN.neg.default, builder.all_reduce(x, group="dp"))
    waits = [builder.call(C10D.all_reduce.default, x, op, "dp") for op in ("sum", "max")]
    gm = builder.finish(first, *(builder.wait(start) for start in waits))
    assert moved(scheduled(gm, builder)) == 0


def test_the_views_that_follow_go_along(builder: GraphBuilder) -> None:
    x = builder.input("x", (4, 2))
    wait = builder.all_reduce(x, group="dp")
    flat = builder.call(ATEN.view.default, wait, [-1])
    parts = builder.call(ATEN.split_with_sizes.default, flat, [3, 5])
    part = builder.call(operator.getitem, parts, 1)
    work = builder.call(ATEN.exp.default, x)
    gm = builder.finish(builder.call(ATEN.neg.default, part), work)
    assert moved(scheduled(gm, builder)) == 4
    assert names(gm)[:2] == ["all_reduce", "exp"]


def test_a_view_of_two_results_waits_for_both(builder: GraphBuilder) -> None:
    x = builder.input("x", (4,))
    one, two = (builder.all_reduce(x, op, "dp") for op in ("sum", "max"))
    work = builder.call(ATEN.exp.default, x)
    gm = builder.finish(builder.call(ATEN.add.Tensor, one, two), work)
    assert moved(scheduled(gm, builder)) == 2
    assert names(gm) == ["all_reduce", "all_reduce", "exp", "wait_tensor", "wait_tensor", "add"]


def test_each_wait_of_a_coalesced_collective_goes_to_its_own_user(builder: GraphBuilder) -> None:
    x, y = builder.input("x", (4,)), builder.input("y", (2,))
    made = builder.call(C10D.all_reduce_coalesced.default, [x, y], "sum", "dp")
    waits = [builder.wait(builder.call(operator.getitem, made, i)) for i in range(2)]
    first = builder.call(ATEN.neg.default, waits[1])
    second = builder.call(ATEN.neg.default, waits[0])
    gm = builder.finish(first, second)
    assert moved(scheduled(gm, builder)) == 1
    assert names(gm) == ["all_reduce_coalesced", "wait_tensor", "neg", "wait_tensor", "neg"]


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_every_kind_of_collective_counts(builder: GraphBuilder, kind: str) -> None:
    x = builder.input("x", (4,))
    wait = builder.all_gather(x, "dp") if kind == "gather" else builder.reduce_scatter(x, "sum", "dp")
    work = builder.call(ATEN.exp.default, x)
    assert moved(scheduled(builder.finish(wait, work), builder)) == 1


def test_a_wait_that_nothing_uses_goes_to_the_end(builder: GraphBuilder) -> None:
    x = builder.input("x", (4,))
    builder.all_reduce(x, group="dp")
    gm = builder.finish(builder.call(ATEN.exp.default, x))
    assert moved(scheduled(gm, builder)) == 1
    assert names(gm) == ["all_reduce", "exp", "wait_tensor"]


def test_a_write_to_what_is_sent_or_received_is_not_crossed(builder: GraphBuilder) -> None:
    x = builder.input("x", (4,))
    own = builder.call(ATEN.clone.default, x)
    wait = builder.all_reduce(own, group="dp")
    work = builder.call(ATEN.exp.default, x)
    write = builder.call(ATEN.add_.Tensor, own, 1)
    gm = builder.finish(wait, work, write)
    scheduled(gm, builder)
    assert names(gm) == ["clone", "all_reduce", "exp", "wait_tensor", "add_"]


def test_an_alias_of_the_received_buffer_is_a_use(builder: GraphBuilder) -> None:
    x = builder.input("x", (4,))
    own = builder.call(ATEN.clone.default, x)
    wait = builder.wait(builder.call(C10D.all_reduce_.default, own, "sum", "dp"))
    work = builder.call(ATEN.exp.default, x)
    reader = builder.call(ATEN.neg.default, own)
    gm = builder.finish(wait, work, reader)
    scheduled(gm, builder)
    assert names(gm) == ["clone", "all_reduce_", "exp", "wait_tensor", "neg"]


def test_a_barrier_is_not_crossed(builder: GraphBuilder) -> None:
    x = builder.input("x", (4,))
    wait = builder.all_reduce(x, group="dp")
    builder.graph.call_function(print, ("here",)).meta["val"] = None
    gm = builder.finish(wait, builder.call(ATEN.exp.default, x))
    before = list(gm.graph.nodes)
    run_pipeline(gm, Pipeline.parse("schedule-waits"), options=CompileOptions(on_error="raise"), groups=builder.groups)
    assert list(gm.graph.nodes) == before


def test_two_waits_on_one_collective_keep_their_order(builder: GraphBuilder) -> None:
    x = builder.input("x", (4,))
    start = builder.call(C10D.all_reduce.default, x, "sum", "dp")
    first, second = builder.wait(start), builder.wait(start)
    work = builder.call(ATEN.exp.default, x)
    gm = builder.finish(builder.call(ATEN.neg.default, second), work, builder.call(ATEN.neg.default, first))
    scheduled(gm, builder, runs=False)
    gm.graph.lint()
    order = [node for node in gm.graph.nodes if ops.is_wait(node)]
    assert order == [first, second]


def test_cost_grows_with_the_graph_alone() -> None:
    """Ten times the nodes take less than thirty times the time."""
    assert delay_seconds(2000) < 30 * delay_seconds(200) + 0.5


def delay_seconds(layers: int) -> float:
    gm, builder = chain(layers)
    began = time.process_time()
    report = run_pipeline(
        gm, Pipeline.parse("schedule-waits"), options=CompileOptions(verify="off"), groups=builder.groups
    )
    assert moved(report) == layers - 1
    return time.process_time() - began


def chain(layers: int) -> tuple[GraphModule, Any]:
    builder = GraphBuilder({"dp": range(2)})
    flow: Node = builder.input("x", (4,))
    value = flow.meta["val"]
    waits = []
    for _ in range(layers):
        flow = builder.graph.call_function(ATEN.neg.default, (flow,))
        start = builder.graph.call_function(C10D.all_reduce.default, (flow, "sum", "dp"))
        waits.append(builder.graph.call_function(C10D.wait_tensor.default, (start,)))
        for node in (flow, start, waits[-1]):
            node.meta["val"] = value
    return builder.finish(*waits), builder
