"""The door to micro-pipelined tensor parallel: inductor's names, signatures and operators, none of its faults."""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch._inductor import config, inductor_prims
from torch._inductor.decomposition import decompositions
from torch._inductor.fx_passes import micro_pipeline_tp as inductors
from torch._inductor.fx_passes.post_grad import remove_noop_ops, view_to_reshape
from torch.distributed._functional_collectives import all_gather_tensor, all_reduce, reduce_scatter_tensor
from torch.distributed._symmetric_memory import _test_mode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

from counterpoint._torch import torch_version
from counterpoint.inductor.fx_passes import micro_pipeline_tp as door
from counterpoint.ir.build import GraphBuilder

pytestmark = [
    # The names that exist on every torch since 2.11; newer ones deprecate them.
    pytest.mark.filterwarnings("ignore:.*is deprecated. Please use:FutureWarning"),
    # Inductor's own pass erases twice on 2.11.
    pytest.mark.filterwarnings("ignore:erase_node.* on an already erased node:UserWarning"),
]

ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional
FP8 = torch.float8_e4m3fn
SHARED = [
    *door.__all__,
    "_find_ancestors",
    "_get_collective_to_overlappable_nodes",
    "_get_node_to_ancestors",
    "_get_tensor",
    "_get_unexposed_collectives",
]


@pytest.fixture
def group() -> Iterator[Any]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield dist.group.WORLD
    dist.destroy_process_group()


def traced(function: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    """The graph as inductor's pass gets it."""
    gm = make_fx(function, decompositions, tracing_mode="fake")(*inputs)
    remove_noop_ops(gm.graph)
    view_to_reshape(gm)
    return gm


def run_both(function: Callable[..., Any], *inputs: Tensor) -> tuple[fx.Graph, fx.Graph]:
    """The graph after our pass and after inductor's, in torch's test mode."""
    ours, theirs = traced(function, *inputs), traced(function, *inputs)
    with _test_mode(), mock.patch.object(dist, "is_nccl_available", return_value=True):
        door.micro_pipeline_tp_pass(ours.graph)
        inductors.micro_pipeline_tp_pass(theirs.graph)
    ours.graph.lint()
    return ours.graph, theirs.graph


def fused(graph: fx.Graph) -> list[Any]:
    """The calls of symmetric memory, with the arguments that are no nodes."""

    def shape(node: fx.Node) -> Any:
        if node.target is inductor_prims.force_stride_order:
            return "restrided", shape(node.args[0]), node.args[1]
        return tuple(node.meta["val"].shape)

    def plain(value: Any) -> Any:
        return fx.map_arg(value, shape)

    return [
        (node.target, plain(node.args), plain(node.kwargs))
        for node in graph.nodes
        if node.op == "call_function" and str(node.target).startswith("symm_mem.")
    ]


def names(graph: fx.Graph) -> Counter[str]:
    return Counter(str(node.target) for node in graph.nodes if node.op == "call_function")


# -- the same door ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHARED)
def test_names_and_signatures_are_inductors(name: str) -> None:
    ours, theirs = inspect.signature(getattr(door, name)), inspect.signature(getattr(inductors, name))
    assert list(ours.parameters) == list(theirs.parameters)


@pytest.mark.parametrize("name", ["_AllGatherMatch", "_ReduceScatterMatch"])
def test_match_records_are_inductors(name: str) -> None:
    ours, theirs = getattr(door, name), getattr(inductors, name)
    assert [field.name for field in dataclasses.fields(ours)] == [field.name for field in dataclasses.fields(theirs)]
    assert {"replace_with", "erase"} <= set(vars(ours))


def test_nothing_is_missing() -> None:
    own = {name for name, value in vars(inductors).items() if getattr(value, "__module__", "") == inductors.__name__}
    assert all(hasattr(door, name) for name in own)


def test_gathers_are_found_as_inductor_finds_them(group: Any) -> None:
    name = group.group_name

    def by_bytes(x: Tensor, dim: int) -> Tensor:
        gathered = all_gather_tensor(x, gather_dim=0, group=name)
        if dim == 0:
            return gathered.view(x.dtype)
        return torch.cat([chunk.view(torch.uint8) for chunk in gathered.chunk(2)], dim=dim).view(x.dtype)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        plain = [all_gather_tensor(x, gather_dim=dim, group=name) for dim in (0, 1)]
        return (*plain, by_bytes(x, 0), by_bytes(x, 1))

    graph = traced(function, torch.rand(64, 32)).graph
    found, theirs = door.find_all_gather_patterns(graph), inductors.find_all_gather_patterns(graph)
    assert len(found) == 4
    for one, other in zip(found, theirs, strict=True):
        for field in ("shard_node", "ag_node", "res_node", "gather_dim", "group_name"):
            assert getattr(one, field) == getattr(other, field)


@pytest.mark.parametrize("saved", [False, True])
def test_scatters_are_found_as_inductor_finds_them(group: Any, saved: bool) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(reduce_scatter_tensor(x, op, dim, group=group) for op, dim in (("sum", 0), ("avg", 1)))

    graph = traced(function, torch.rand(64, 32)).graph
    if saved:
        starts = [node for node in graph.nodes if node.target is C10D.reduce_scatter_tensor.default]
        output = graph.output_node()
        output.args = ((*output.args[0], *starts),)
    found, theirs = door.find_reduce_scatter_patterns(graph), inductors.find_reduce_scatter_patterns(graph)
    assert [(match.reduce_op, match.scatter_dim) for match in found] == [("sum", 0), ("avg", 1)]
    for one, other in zip(found, theirs, strict=True):
        for field in ("input_node", "reduce_scatter_node", "wait_tensor_node", "reduce_op", "scatter_dim"):
            assert getattr(one, field) == getattr(other, field)


def test_a_match_replaces_and_erases(group: Any) -> None:
    gm = traced(lambda x: all_gather_tensor(x, 0, group) + 1, torch.rand(4, 4))
    (match,) = door.find_all_gather_patterns(gm.graph)
    with gm.graph.inserting_before(match.ag_node):
        new = gm.graph.call_function(ATEN.cat.default, ([match.shard_node, match.shard_node],))
    match.replace_with(new)
    match.erase()
    gm.graph.lint()
    assert not door.find_all_gather_patterns(gm.graph)


def test_collectives_that_matmuls_hide(group: Any) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        beside = x @ x.T
        first = all_gather_tensor(x, 0, group)
        product = first @ x.T
        second = reduce_scatter_tensor(first, "avg", 0, group)
        return beside, product, all_gather_tensor(second, 0, group)

    graph = make_fx(function)(torch.rand(64, 32)).graph
    assert list(map(str, door._get_unexposed_collectives(graph))) == ["all_gather_into_tensor", "reduce_scatter_tensor"]
    assert door._get_unexposed_collectives(graph) == inductors._get_unexposed_collectives(graph)
    assert dict(door._get_collective_to_overlappable_nodes(graph)) == dict(
        inductors._get_collective_to_overlappable_nodes(graph)
    )
    assert door._get_node_to_ancestors(graph) == inductors._get_node_to_ancestors(graph)
    for node in graph.nodes:
        assert set(door._find_ancestors(node)) == set(inductors._find_ancestors(node))


def test_what_matmuls_hide_is_left_when_collectives_are_reordered(group: Any) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return x @ w, all_gather_tensor(x, 0, group) @ w

    gm = traced(function, torch.rand(8, 8), torch.rand(8, 8))
    with config.patch(reorder_for_compute_comm_overlap=True), _test_mode():
        door.micro_pipeline_tp_pass(gm.graph)
    assert names(gm.graph)["_c10d_functional.all_gather_into_tensor.default"] == 1


# -- the same operators -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("returned", [True, False])
@pytest.mark.parametrize(("dims", "dim"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
@pytest.mark.parametrize("width", [32, 1024])
def test_a_gather_and_its_matmul(group: Any, dims: int, dim: int, returned: bool, width: int) -> None:
    shape = [2, 64, width][-dims:]
    last = dim == dims - 1
    shape[dim] //= 1 if last else 2

    def function(shard: Tensor, other: Tensor) -> tuple[Tensor | None, Tensor]:
        whole = all_gather_tensor(shard, gather_dim=dim, group=group)
        return (whole if returned else None), whole @ other

    ours, theirs = run_both(function, torch.rand(shape), torch.rand(width * (2 if last else 1), 16))
    assert fused(ours) == fused(theirs)
    assert not names(ours)["_c10d_functional.all_gather_into_tensor.default"]
    assert len(fused(ours)) + names(ours)["counterpoint.all_gather_matmul.default"] == 1


@pytest.mark.parametrize(("dims", "dim"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_a_gather_and_its_scaled_matmul(group: Any, dims: int, dim: int) -> None:
    shape = [2, 64, 32][-dims:]
    last = dim == dims - 1
    shape[dim] //= 2

    def function(shard: Tensor, other: Tensor, left: Tensor, right: Tensor) -> Tensor:
        whole = all_gather_tensor(shard, gather_dim=0, group=group)
        if dim:
            whole = torch.cat([chunk.view(torch.uint8) for chunk in whole.chunk(2)], dim=dim).view(FP8)
        made = torch._scaled_mm(whole.flatten(0, -2), other, left, right, out_dtype=torch.bfloat16)
        return made.view(*whole.shape[:-1], -1)

    scale = torch.tensor(0.1)
    ours, theirs = run_both(function, torch.rand(shape).to(FP8), torch.rand(16, 32).to(FP8).T, scale, scale)
    assert fused(ours) == fused(theirs)
    assert bool(fused(ours)) == (not last)
    assert names(ours)["_c10d_functional.all_gather_into_tensor.default"] == int(last)


@pytest.mark.parametrize(("dims", "dim"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_matmul_and_its_scatter(group: Any, dims: int, dim: int, scaled: bool) -> None:
    def function(left: Tensor, right: Tensor, scale: Tensor) -> Tensor:
        if not scaled:
            return reduce_scatter_tensor(left @ right, "avg", dim, group)
        made = torch._scaled_mm(left.flatten(0, -2), right, scale, scale, out_dtype=torch.bfloat16)
        return reduce_scatter_tensor(made.view(*left.shape[:-1], 16), "avg", dim, group)

    left, right = torch.rand([2, 64, 32][-dims:]), torch.rand(16, 32).T
    if scaled:
        left, right = left.to(FP8), right.to(FP8)
    ours, theirs = run_both(function, left, right, torch.tensor(0.1))
    assert fused(ours) == fused(theirs)
    unfused = int(scaled and dim == dims - 1)
    kept = names(ours)["_c10d_functional.reduce_scatter_tensor.default"]
    assert len(fused(ours)) == 1 - unfused
    assert kept + names(ours)["counterpoint.scaled_matmul_reduce_scatter.default"] == unfused


@pytest.mark.parametrize("dim", [0, 1])
def test_row_scales_go_through_reshapes(group: Any, dim: int) -> None:
    def function(left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor) -> Tensor:
        scale = torch.reciprocal(left_scale.reshape(-1, 1))
        made = torch._scaled_mm(left.reshape(-1, 32), right, scale, right_scale, out_dtype=torch.bfloat16)
        return reduce_scatter_tensor(made.view(2, 16, 64), "sum", dim, group)

    inputs = torch.rand(2, 16, 32).to(FP8), torch.rand(64, 32).to(FP8).T
    ours, theirs = run_both(function, *inputs, torch.full((2, 16, 1), 0.1), torch.full((1, 64), 0.1))
    assert len(fused(ours)) == 1
    assert fused(ours) == fused(theirs)


def test_several_matmuls_of_one_gather(group: Any) -> None:
    def function(shard: Tensor, *others: Tensor) -> list[Tensor]:
        whole = all_gather_tensor(shard, 0, group)
        return [whole @ other for other in others]

    ours, theirs = run_both(function, torch.rand(4, 8), torch.rand(8, 3), torch.rand(8, 5))
    assert fused(ours) == fused(theirs) != []


def test_one_at_a_time(group: Any) -> None:
    def function(shard: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return reduce_scatter_tensor(torch.relu(all_gather_tensor(shard, 0, group) @ first) @ second, "sum", 0, group)

    gm = traced(function, torch.rand(4, 8), torch.rand(8, 3), torch.rand(3, 5))
    with _test_mode():
        (gather,), (scatter,) = door.find_all_gather_patterns(gm.graph), door.find_reduce_scatter_patterns(gm.graph)
        door.fuse_all_gather_matmul(gather)
        door.fuse_matmul_reduce_scatter(scatter)
    gm.graph.lint()
    assert [str(call[0]) for call in fused(gm.graph)] == [
        "symm_mem.fused_all_gather_matmul.default",
        "symm_mem.fused_matmul_reduce_scatter.default",
    ]


# -- beyond -----------------------------------------------------------------------------------------------------------


def test_without_symmetric_memory_the_operators_are_ours(group: Any) -> None:
    def function(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(all_gather_tensor(x, 0, group) @ w)
        return reduce_scatter_tensor(hidden @ v, "sum", 0, group), all_reduce(x @ w, "sum", group)

    gm = traced(function, torch.rand(4, 8), torch.rand(8, 6), torch.rand(6, 8))
    door.micro_pipeline_tp_pass(gm.graph)
    made = names(gm.graph)
    assert not any("_c10d_functional" in name or "symm_mem" in name for name in made)
    assert {name for name in made if name.startswith("counterpoint")} == {
        "counterpoint.all_gather_matmul.default",
        "counterpoint.matmul_reduce_scatter.default",
        "counterpoint.matmul_all_reduce.default",
    }
    assert all("val" in node.meta for node in gm.graph.nodes if node.op == "call_function")


def test_one_matmul_between_gather_and_scatter_goes_with_the_gather(group: Any) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return reduce_scatter_tensor(all_gather_tensor(x, 0, group) @ w, "sum", 0, group)

    gm = traced(function, torch.rand(4, 8), torch.rand(8, 6))
    with _test_mode():
        door.micro_pipeline_tp_pass(gm.graph)
    assert len(fused(gm.graph)) == 1
    assert names(gm.graph)["_c10d_functional.reduce_scatter_tensor.default"] == 1
    if torch_version() < (2, 13):
        return
    with pytest.raises(AttributeError, match="all_input_nodes"):
        run_both(function, torch.rand(4, 8), torch.rand(8, 6))


def permuted(builder: GraphBuilder, order: tuple[int, int]) -> fx.GraphModule:
    x, w = builder.input("x", (4, 8)), builder.input("w", (16, 4))
    gathered = builder.all_gather(x)
    pieces = [builder.call(ATEN.slice.Tensor, gathered, 0, 4 * i, 4 * i + 4) for i in order]
    return builder.finish(builder.call(ATEN.mm.default, builder.call(ATEN.cat.default, pieces, 1), w))


def test_permuted_pieces_are_no_gather() -> None:
    right, wrong = (permuted(GraphBuilder(), order).graph for order in ((0, 1), (1, 0)))
    assert len(door.find_all_gather_patterns(right)) == 1
    assert len(inductors.find_all_gather_patterns(wrong)) == 1
    assert door.find_all_gather_patterns(wrong) == []


@pytest.mark.parametrize("reduce_op", ["max", "product"])
def test_other_reductions_are_left_alone(group: Any, reduce_op: str) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return reduce_scatter_tensor(x @ w, reduce_op, 0, group)

    ours, theirs = run_both(function, torch.rand(4, 8), torch.rand(8, 6))
    assert len(fused(theirs)) == 1
    assert fused(ours) == []
    assert names(ours)["_c10d_functional.reduce_scatter_tensor.default"] == 1


def test_scales_stay_with_their_matmuls(group: Any) -> None:
    """Inductor multiplies both by the first one's scale."""

    def function(shard: Tensor, other: Tensor, one: Tensor, two: Tensor) -> list[Tensor]:
        whole = all_gather_tensor(shard, 0, group)
        return [torch._scaled_mm(whole, other, scale, one, out_dtype=torch.bfloat16) for scale in (one, two)]

    inputs = torch.rand(16, 32).to(FP8), torch.rand(16, 32).to(FP8).T, torch.tensor(0.1), torch.tensor(0.2)
    ours, theirs = run_both(function, *inputs)
    assert len(fused(theirs)[0][1][1]) == 2
    assert len(fused(ours)[0][1][1]) == 1
    assert names(ours)["aten._scaled_mm.default"] == 1


def test_a_graph_without_collectives_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    builder = GraphBuilder()
    gm = builder.finish(builder.call(ATEN.mm.default, builder.input("x", (2, 2)), builder.input("y", (2, 2))))
    before = str(gm.graph)
    with caplog.at_level("WARNING", "counterpoint.micro_pipeline_tp"):
        door.micro_pipeline_tp_pass(gm.graph)
    assert str(gm.graph) == before
    assert "found no matching" in caplog.text
