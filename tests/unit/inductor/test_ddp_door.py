"""The door to DDP fusion has inductor's names, signatures, operators and counter, and none of its faults."""

from __future__ import annotations

import dataclasses
import inspect
import operator
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.utils import counters
from torch._inductor.fx_passes import ddp_fusion as inductors

from counterpoint.errors import OptionError
from counterpoint.inductor.fx_passes import ddp_fusion as door
from counterpoint.ir.build import GraphBuilder, collectives_in
from counterpoint.ir.evaluate import evaluate
from counterpoint.ir.samples import sample_inputs

ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional
ALL_REDUCE = (C10D.all_reduce.default, C10D.all_reduce_.default)


@pytest.fixture
def builder() -> GraphBuilder:
    return GraphBuilder({"dp": range(2), "tp": range(2)})


def gradient(builder: GraphBuilder, x: fx.Node, op: str = "sum", group: str = "dp", by: float = 2) -> fx.Node:
    return builder.all_reduce(builder.call(ATEN.div.Tensor, x, by), op, group)


def backward(builder: GraphBuilder, shapes: Any = ((4,), (2, 3), (5,))) -> fx.GraphModule:
    inputs = [builder.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    return builder.finish(*(gradient(builder, x) for x in inputs))


def bare(gm: fx.GraphModule) -> fx.Graph:
    """A graph that no module owns."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        copied[node] = graph.node_copy(node, copied.__getitem__)
    return graph


def check_values(before: fx.GraphModule, after: fx.Graph, builder: GraphBuilder) -> None:
    inputs = sample_inputs(before, 2, seed=1)
    now = evaluate(fx.GraphModule(torch.nn.Module(), after), inputs, builder.groups)
    for left, right in zip(evaluate(before, inputs, builder.groups), now, strict=True):
        for expected, value in zip(left, right, strict=True):
            assert expected.dtype is value.dtype
            assert torch.equal(expected, value)


def targets(graph: fx.Graph) -> list[Any]:
    return [node.target for node in graph.nodes if node.op == "call_function"]


# -- the same door ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", door.__all__)
def test_names_and_signatures_are_inductors(name: str) -> None:
    ours, theirs = getattr(door, name), getattr(inductors, name)
    if name == "CommBlock":
        assert [f.name for f in dataclasses.fields(ours)] == [f.name for f in dataclasses.fields(theirs)]
        return
    ours, theirs = inspect.signature(ours), inspect.signature(theirs)
    assert list(ours.parameters) == list(theirs.parameters)
    for parameter in ours.parameters.values():
        assert parameter.default == theirs.parameters[parameter.name].default


def test_nothing_public_is_missing() -> None:
    public = {name for name, value in vars(inductors).items() if getattr(value, "__module__", "") == inductors.__name__}
    assert {name for name in public if not name.startswith("_")} == set(door.__all__)


def test_concat_emits_inductors_operators(builder: GraphBuilder) -> None:
    graph = bare(backward(builder))
    door.fuse_ddp_with_concat_op(graph, 25)
    assert targets(graph) == [
        *[ATEN.flatten.using_ints] * 3,
        ATEN.cat.default,
        ATEN.div.Tensor,
        C10D.all_reduce.default,
        C10D.wait_tensor.default,
        ATEN.split_with_sizes.default,
        *[operator.getitem, ATEN.reshape.default] * 3,
    ]


def test_coalesced_emits_inductors_operators(builder: GraphBuilder) -> None:
    graph = bare(backward(builder))
    door.fuse_ddp_with_coalesced_op(graph, 25)
    assert targets(graph) == [
        ATEN._foreach_div.Scalar,
        *[operator.getitem] * 3,
        C10D.all_reduce_coalesced.default,
        *[operator.getitem] * 3,
        *[C10D.wait_tensor.default] * 3,
    ]


@pytest.mark.parametrize("name", ["fuse_ddp_with_concat_op", "fuse_ddp_with_coalesced_op"])
def test_four_large_layers_make_three_buckets(builder: GraphBuilder, name: str) -> None:
    """Weights and biases of four layers of 2000 x 2000: the last layer alone, two layers, the first one."""
    gm = backward(builder, [(2000,), (2000, 2000)] * 4)
    counters.clear()
    door.fuse_ddp_communication(gm.graph, [name, "schedule_comm_wait"], 25)
    assert counters["inductor"]["ddp_buckets"] == 3
    assert len(collectives_in(gm.graph)) == 3
    gm.graph.lint()


@pytest.mark.parametrize("owned", [True, False])
def test_passes_are_given_by_name_or_as_functions(builder: GraphBuilder, owned: bool) -> None:
    gm = backward(builder)
    graph = gm.graph if owned else bare(gm)
    seen: list[Any] = []

    def with_size(graph: fx.Graph, bucket_size_mb: int) -> None:
        seen.append((graph, bucket_size_mb))

    door.fuse_ddp_communication(graph, [with_size, lambda graph: seen.append(graph), "fuse_ddp_with_concat_op"], 7)
    assert seen == [(graph, 7), graph]
    assert len(collectives_in(graph)) == 1


def test_an_unknown_name_says_which_there_are(builder: GraphBuilder) -> None:
    with pytest.raises(OptionError, match="fuse_ddp_with_concat_op"):
        door.fuse_ddp_communication(backward(builder).graph, ["fuse_ddp"], 25)


def test_inductor_runs_our_passes_given_as_functions(builder: GraphBuilder) -> None:
    """`_inductor.config._fuse_ddp_communication_passes` takes functions, which is one way to change over."""
    gm = backward(builder)
    inductors.fuse_ddp_communication(gm.graph, [door.fuse_ddp_with_concat_op, door.schedule_comm_wait], 25)
    assert len(collectives_in(gm.graph)) == 1


# -- blocks -----------------------------------------------------------------------------------------------------------


def test_a_block_has_inductors_fields(builder: GraphBuilder) -> None:
    gm = backward(builder)
    ours = door.get_all_comm_blocks(gm.graph, ALL_REDUCE)
    theirs = inductors.get_all_comm_blocks(gm.graph, ALL_REDUCE)
    assert [vars(block) for block in ours] == [vars(block) for block in theirs]


def test_a_coalesced_block_and_trailing_views(builder: GraphBuilder) -> None:
    x, y = builder.input("x", (4,)), builder.input("y", (2, 3))
    start = builder.call(C10D.all_reduce_coalesced.default, [x, y], "sum", "dp")
    parts = [builder.call(operator.getitem, start, i) for i in range(2)]
    waits = [builder.wait(part) for part in parts]
    view = builder.call(ATEN.reshape.default, waits[1], [6])
    builder.finish(waits[0], builder.call(ATEN.neg.default, view))
    block = door.get_comm_block(start)
    assert block is not None
    assert block.shape == [torch.Size([4]), torch.Size([2, 3])]
    assert block.node_list == [start, *parts, *waits, view]
    assert (block.inputs, block.wait_nodes, block.comm_node) == ([x, y], waits, start)
    assert list(block.outputs) == [waits[0], view]
    assert len({block, door.get_comm_block(start)}) == 2


def test_filters_and_what_is_no_block(builder: GraphBuilder) -> None:
    x = builder.input("x", (4,))
    lonely = builder.call(C10D.all_reduce.default, x, "sum", "dp")
    gm = builder.finish(gradient(builder, x), gradient(builder, x, "max"))
    assert door.get_comm_block(lonely) is None
    assert len(door.get_all_comm_blocks(gm.graph, ALL_REDUCE)) == 2
    largest = door.get_all_comm_blocks(gm.graph, ALL_REDUCE, lambda block: "max" in block.comm_node.args)
    assert len(largest) == 1
    assert door.get_all_comm_blocks(gm.graph, (C10D.broadcast.default,)) == []


def test_metadata_is_read_from_values_alone(builder: GraphBuilder) -> None:
    gm = backward(builder)
    for node in gm.graph.nodes:
        node.meta.pop("tensor_meta", None)
    assert [block.shape for block in door.get_all_comm_blocks(gm.graph, ALL_REDUCE)] == [(4,), (2, 3), (5,)]
    door.fuse_ddp_with_concat_op(gm.graph, 25)
    assert len(collectives_in(gm.graph)) == 1


# -- helpers ----------------------------------------------------------------------------------------------------------


def three(builder: GraphBuilder) -> tuple[fx.Graph, list[fx.Node]]:
    x = builder.input("x", (4,))
    made = [builder.call(target, x) for target in (ATEN.neg.default, ATEN.exp.default, ATEN.abs.default)]
    return builder.finish(*made).graph, made


def test_moving_before_and_after_keeps_the_order_of_the_list(builder: GraphBuilder) -> None:
    graph, (a, b, c) = three(builder)
    door.move_block_before([b, c], a)
    assert [n for n in graph.nodes if n.op == "call_function"] == [b, c, a]
    door.move_block_after([c, b], a)
    assert [n for n in graph.nodes if n.op == "call_function"] == [a, c, b]
    door.move_block_before([], a)
    graph.lint()


def test_a_call_has_its_value(builder: GraphBuilder) -> None:
    graph, (a, *_) = three(builder)
    with graph.inserting_after(a):
        made = door.call_function(graph, ATEN.split.Tensor, (a, 2))
    assert [value.shape for value in made.meta["val"]] == [(2,), (2,)]
    assert [meta.shape for meta in made.meta["tensor_meta"]] == [(2,), (2,)]
    with pytest.raises(RuntimeError, match="str target"):
        door.call_function(graph, "neg", (a,))


def test_a_call_without_any_tensor_uses_the_ambient_mode(builder: GraphBuilder) -> None:
    from torch._inductor.virtualized import V

    with V.set_fake_mode(builder.fake_mode):
        made = door.call_function(fx.Graph(), ATEN.full.default, ([2], 1.0))
    assert made.meta["val"].fake_mode is builder.fake_mode


def test_waits_are_delayed(builder: GraphBuilder) -> None:
    x, y = builder.input("x", (4,)), builder.input("y", (4,))
    waits = [gradient(builder, x), gradient(builder, y)]
    gm = builder.finish(*waits)
    door.schedule_comm_wait(gm.graph)
    assert list(gm.graph.nodes)[-3:-1] == waits


# -- inductor's faults ------------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("name", ["fuse_ddp_with_concat_op", "fuse_ddp_with_coalesced_op"])


@BOTH
@pytest.mark.parametrize("what", ["group", "op", "dtype", "divisor"])
def test_what_differs_is_not_mixed_up(builder: GraphBuilder, name: str, what: str) -> None:
    second: dict[str, Any] = {"group": {"group": "tp"}, "op": {"op": "max"}, "divisor": {"by": 4}}.get(what, {})
    dtypes = (torch.float32, torch.bfloat16 if what == "dtype" else torch.float32)
    inputs = [builder.input(f"x{i}", (4,), dtypes[i % 2]) for i in range(4)]
    gm = builder.finish(*(gradient(builder, x, **(second if i % 2 else {})) for i, x in enumerate(inputs)))
    graph = bare(gm)
    getattr(door, name)(graph, 25)
    assert len(collectives_in(graph)) == (1 if what == "divisor" else 2)
    check_values(gm, graph, builder)


@BOTH
def test_symbolic_sizes_run_at_another_size(builder: GraphBuilder, name: str) -> None:
    rows = builder.symbol("rows", 8)
    gm = builder.finish(*(gradient(builder, x) for x in [builder.input(f"x{i}", (rows, 8)) for i in range(3)]))
    getattr(door, name)(gm.graph, 25)
    gm.recompile()
    inputs = [[torch.full((5, 8), float(rank + i)) for i in range(3)] for rank in range(2)]
    (first, *_), _ = evaluate(gm, inputs, builder.groups)
    assert torch.equal(first, torch.full((5, 8), 0.5))


@BOTH
def test_nothing_raises_where_nothing_can_be_done(builder: GraphBuilder, name: str) -> None:
    x = builder.input("x", (4,))
    builder.call(C10D.all_reduce.default, x, "sum", "dp")
    start = builder.call(C10D.all_reduce.default, x, "max", "dp")
    gm = builder.finish(builder.wait(start), builder.wait(start))
    before = str(gm.graph)
    door.fuse_ddp_communication(gm.graph, [name], 25)
    assert str(gm.graph) == before
    door.fuse_ddp_communication(fx.Graph(), [name, "schedule_comm_wait"], 25)


def test_a_graph_out_of_order_is_sorted_first(builder: GraphBuilder) -> None:
    gm = backward(builder)
    reduce = collectives_in(gm.graph)[0]
    reduce.append(reduce.all_input_nodes[0])
    door.fuse_ddp_with_concat_op(gm.graph, 25)
    gm.graph.lint()
    assert len(collectives_in(gm.graph)) == 1
