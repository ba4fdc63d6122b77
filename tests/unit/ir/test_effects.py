"""What is known to be pure may move; what is not known is a barrier."""

import operator

import pytest
import torch
import torch.distributed.tensor
from torch import nn
from torch.fx import Graph, GraphModule, Node

from counterpoint.ir import effects
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.effects import Effect, effect_of

C10D = torch.ops._c10d_functional
ATEN = torch.ops.aten


def call(target: object, *args: object) -> Node:
    return Graph().call_function(target, args)  # type: ignore[arg-type]


def test_known_operators() -> None:
    assert effect_of(call(ATEN.add.Tensor)) is Effect.PURE
    assert effect_of(call(operator.getitem)) is Effect.PURE
    assert effect_of(call(torch.sym_max)) is Effect.PURE
    assert effect_of(call(C10D.all_reduce.default)) is Effect.COLLECTIVE
    assert effect_of(call(C10D.wait_tensor.default)) is Effect.WAIT
    assert effect_of(call(ATEN.add_.Tensor)) is Effect.MUTATES
    assert effect_of(call(ATEN.rand.default)) is Effect.RANDOM
    assert effect_of(call(ATEN.native_dropout.default)) is Effect.RANDOM


def test_what_may_communicate_is_a_barrier() -> None:
    assert effect_of(call(torch.ops.c10d.allreduce_.default)) is Effect.BARRIER
    assert effect_of(call(torch.ops.symm_mem.memset32_.default)) is Effect.BARRIER
    assert effect_of(call(ATEN._assert_async.msg)) is Effect.BARRIER


@pytest.mark.skipif(
    not hasattr(torch.ops._dtensor, "mesh_get_process_group"), reason="torch has no such operator before 2.13"
)
def test_finding_a_group_is_pure() -> None:
    assert effect_of(call(torch.ops._dtensor.mesh_get_process_group.default)) is Effect.PURE


def test_unknown_functions_modules_and_methods_are_barriers() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    assert effect_of(graph.call_function(print, (x,))) is Effect.BARRIER
    assert effect_of(graph.call_method("add_", (x, 1))) is Effect.BARRIER
    assert effect_of(graph.call_module("layer", (x,))) is Effect.BARRIER
    assert effect_of(x) is Effect.PURE


def test_an_operator_that_takes_a_group_is_a_barrier() -> None:
    library = torch.library.Library("counterpoint_test", "DEF")
    library.define("mystery(Tensor x, str group_name) -> Tensor")
    assert effect_of(call(torch.ops.counterpoint_test.mystery.default)) is Effect.BARRIER


def higher_order_call(inner: object) -> Node:
    body = Graph()
    x = body.placeholder("x")
    body.output((body.call_function(inner, (x, x)),))  # type: ignore[arg-type]
    graph = Graph()
    y = graph.placeholder("y")
    graph.get_attr("body")
    module = nn.Module()
    module.body = GraphModule(nn.Module(), body)
    attr = next(n for n in graph.nodes if n.op == "get_attr")
    node = graph.call_function(torch.ops.higher_order.invoke_subgraph, (attr, "body", y))
    graph.output((node,))
    gm = GraphModule(module, graph)
    return next(n for n in gm.graph.nodes if n.op == "call_function")


def test_a_higher_order_call_is_as_pure_as_its_body() -> None:
    assert effect_of(higher_order_call(ATEN.add.Tensor)) is Effect.PURE
    assert effect_of(higher_order_call(ATEN.add_.Tensor)) is Effect.BARRIER
    assert effect_of(higher_order_call(C10D.all_reduce.default)) is Effect.BARRIER


def test_writes_are_found_also_where_the_schema_is_silent() -> None:
    builder = GraphBuilder()
    x, y = builder.input("x", (4,)), builder.input("y", (8,))
    add = builder.call(ATEN.add_.Tensor, x, 1)
    reduce = builder.call(C10D.all_reduce_.default, x, "sum", "0")
    gather = builder.call(C10D.all_gather_into_tensor_out.default, x, 2, "0", out=y)
    assert effects.written_nodes(add) == (x,)
    assert effects.written_nodes(reduce) == (x,)
    assert effects.written_nodes(gather) == (y,)
    assert effects.written_nodes(builder.call(ATEN.add.Tensor, x, 1)) == ()


@pytest.mark.messages
def test_a_receive_writes_the_tensor_it_is_given() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (4,))
    assert effects.written_nodes(builder.call(C10D.irecv.default, x, 1, 0, "0")) == (x,)


def test_aliases_of_views_waits_and_in_place_results() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (4, 2))
    view = builder.call(ATEN.view.default, x, (8,))
    reshaped = builder.call(ATEN.reshape.default, x, (8,))
    start = builder.call(C10D.all_reduce_.default, view, "sum", "0")
    wait = builder.wait(start)
    fresh = builder.call(ATEN.neg.default, x)
    assert effects.aliased_nodes(view) == (x,)
    assert effects.aliased_nodes(reshaped) == (x,)
    assert effects.aliased_nodes(start) == (view,)
    assert effects.aliased_nodes(wait) == (start,)
    assert effects.aliased_nodes(fresh) == ()
