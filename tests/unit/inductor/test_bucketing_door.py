"""The door to bucketing has inductor's names, signatures and operators, and none of its faults."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import fx
from torch._inductor.fx_passes import bucketing as inductors
from torch.fx.experimental.proxy_tensor import make_fx

from counterpoint import fake_world
from counterpoint._torch import torch_version
from counterpoint.errors import GraphError, OptionError
from counterpoint.inductor.fx_passes import bucketing as door
from counterpoint.ir.build import GraphBuilder, collectives_in
from counterpoint.ir.evaluate import evaluate
from counterpoint.ir.samples import sample_inputs

ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional
CONVERT = torch.ops.prims.convert_element_type.default
WORLD = "0"

Make = Callable[[], fx.GraphModule]


@pytest.fixture
def builder() -> GraphBuilder:
    return GraphBuilder({WORLD: range(2), "1": range(2)})


@pytest.fixture
def world() -> Iterator[None]:
    """A process group named as in the graphs, which pretends to communicate; this process is rank 1 of it."""
    with fake_world(2, rank=1):
        assert dist.group.WORLD is not None
        assert dist.group.WORLD.group_name == WORLD
        yield


def gathers(b: GraphBuilder, dtypes: Any = (torch.float32,) * 2, cast: torch.dtype | None = None) -> fx.GraphModule:
    xs = [b.input(f"x{i}", ((4, 3), (8,), (2, 2))[i % 3], dtype) for i, dtype in enumerate(dtypes)]
    sent = [b.call(CONVERT, x, cast) if cast is not None else x for x in xs]
    return b.finish(*(b.all_gather(x, WORLD) for x in sent))


def scatters(b: GraphBuilder) -> fx.GraphModule:
    xs = [b.input("x", (4, 3)), b.input("y", (8,))]
    return b.finish(*(b.reduce_scatter(x, "sum", WORLD) for x in xs))


def reductions(b: GraphBuilder, count: int = 2) -> fx.GraphModule:
    xs = [b.input(f"x{i}", (4, 3)) for i in range(count)]
    return b.finish(*(b.all_reduce(x, "sum", WORLD) for x in xs))


def targets(graph: fx.Graph) -> Counter[Any]:
    return Counter(node.target for node in graph.nodes if node.op == "call_function")


COPIES_OUT = hasattr(inductors, "_unpack_bucketed_all_gather_output")
"""From torch 2.15, inductor copies members out of gathered buckets packed by its operator; the door keeps the views."""


def emitted(graph: fx.Graph, mode: Any = None) -> Counter[Any]:
    """The operators that bucketing must emit as inductor does."""
    if COPIES_OUT and mode and mode.startswith("custom_ops"):
        calls = [node.target for node in graph.nodes if node.op == "call_function"]
        return Counter(calls[: calls.index(C10D.wait_tensor.default) + 1])
    return targets(graph)


def check_values(before: fx.GraphModule, after: fx.GraphModule, b: GraphBuilder) -> None:
    inputs = sample_inputs(before, 2, seed=1)
    for left, right in zip(evaluate(before, inputs, b.groups), evaluate(after, inputs, b.groups), strict=True):
        for expected, value in zip(left, right, strict=True):
            assert expected.dtype is value.dtype
            assert torch.equal(expected, value)


# -- the same door ----------------------------------------------------------------------------------------------------


as_in_2_13 = pytest.mark.skipif(
    torch_version() < (2, 13), reason="compares with bodies, defaults and operators of inductor from torch 2.13"
)


def public(module: Any) -> set[str]:
    own = {name for name, value in vars(module).items() if getattr(value, "__module__", "") == inductors.__name__}
    return {name for name in own if not name.startswith("_") and callable(vars(module)[name])}


NOT_OURS = {"deduplicate_wait_tensors"}
"""What came with torch 2.15 and is inductor's own."""


def test_nothing_public_is_missing() -> None:
    assert public(inductors) <= {*door.__all__, *NOT_OURS}
    assert all(hasattr(door, name) for name in public(inductors))


@as_in_2_13
@pytest.mark.parametrize("name", sorted(public(inductors)))
def test_signatures_are_inductors(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (door, inductors))
    # Ours are those of the newest torch: what an older one lacks stands behind, and may be left out.
    newer = list(ours.values())[len(theirs) :]
    assert list(ours) == [*theirs, *(p.name for p in newer)]
    assert [p.default for p in ours.values()] == [*(p.default for p in theirs.values()), *(None for _ in newer)]


# Bodies are traced by inductor and not called by users; from 2.13 on they take the group before its size.
CALLED = sorted(name for name in public(inductors) if "merge_fn_to_trace" not in name)


@pytest.mark.parametrize("name", CALLED)
def test_what_callers_of_any_version_pass_is_taken(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (door, inductors))
    assert list(ours)[: len(theirs)] == list(theirs)
    assert not [p.name for p in list(ours.values())[len(theirs) :] if p.default is p.empty]


@pytest.mark.parametrize("name", ["_pre_bucket_all_gather", "_schedulable_wait_node", "_ALL_DTYPES", "logger"])
def test_other_names_are_inductors_own(name: str) -> None:
    assert getattr(door, name) is getattr(inductors, name)


def test_names_that_nobody_has_are_missing() -> None:
    assert not hasattr(door, "bucket_everything")


GATHERS: dict[str, Callable[[GraphBuilder], fx.GraphModule]] = {
    "plain": gathers,
    "cast": lambda b: gathers(b, cast=torch.bfloat16),
    "one type": lambda b: gathers(b, (torch.float16,) * 3),
}


@as_in_2_13
@pytest.mark.parametrize("mode", ["default", "custom_ops", "custom_ops_multidtype", "coalesced", None])
@pytest.mark.parametrize("form", GATHERS)
def test_gathers_become_inductors_operators(world: None, form: str, mode: Any) -> None:
    ours, theirs = (GATHERS[form](GraphBuilder({WORLD: range(2)})) for _ in range(2))
    door.bucket_all_gather(ours, mode=mode)
    inductors.bucket_all_gather(theirs, mode=mode)
    assert emitted(ours.graph, mode) == emitted(theirs.graph, mode)
    packed = torch.ops.bucketing._pre_bucket_all_gather.default
    arguments = [[n.args[1:] for n in gm.graph.nodes if n.target is packed] for gm in (ours, theirs)]
    assert arguments[0] == arguments[1]


@as_in_2_13
@pytest.mark.parametrize("mode", ["default", "custom_ops", "coalesced", None])
def test_scatters_become_inductors_operators(mode: Any) -> None:
    ours, theirs = (scatters(GraphBuilder({WORLD: range(2)})) for _ in range(2))
    door.bucket_reduce_scatter(ours, mode=mode)
    inductors.bucket_reduce_scatter(theirs, mode=mode)
    assert targets(ours.graph) == targets(theirs.graph)


def test_reductions_become_inductors_operators() -> None:
    ours, theirs = (reductions(GraphBuilder({WORLD: range(2)}), 4) for _ in range(2))
    door.bucket_all_reduce(ours, mode="all")
    inductors.bucket_all_reduce(theirs, mode="all")
    assert targets(ours.graph) == targets(theirs.graph)


def test_types_mix_in_inductors_operator_where_they_are_aligned(world: None) -> None:
    dtypes = (torch.float32, torch.bfloat16)
    ours, theirs = (gathers(GraphBuilder({WORLD: range(2)}), dtypes) for _ in range(2))
    door.bucket_all_gather(ours, mode="custom_ops_multidtype")
    inductors.bucket_all_gather(theirs, mode="custom_ops_multidtype")
    assert emitted(ours.graph, "custom_ops") == emitted(theirs.graph, "custom_ops")


def test_types_that_would_lie_at_odd_addresses_travel_as_bytes(world: None, builder: GraphBuilder) -> None:
    xs = [builder.input("x", (3,), torch.bfloat16), builder.input("y", (5,))]
    gm = builder.finish(*(builder.all_gather(x, WORLD) for x in xs))
    door.bucket_all_gather(gm, mode="custom_ops_multidtype")
    assert len(collectives_in(gm.graph)) == 1
    assert targets(gm.graph)[torch.ops.bucketing._pre_bucket_all_gather.default] == 0


def test_without_a_process_group_gathers_hold_no_rank(builder: GraphBuilder) -> None:
    gm, before = gathers(builder), gathers(GraphBuilder({WORLD: range(2)}))
    door.bucket_all_gather(gm)
    assert targets(gm.graph)[C10D.all_gather_into_tensor_out.default] == 1
    assert targets(gm.graph)[ATEN.copy_.default] == 0
    check_values(before, gm, builder)


@as_in_2_13
@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("all_reduce_merge_fn_to_trace", (WORLD, "sum", torch.float32, torch.device("cpu"))),
        ("reduce_scatter_merge_fn_to_trace", (WORLD, 2, "sum", torch.float32, torch.device("cpu"))),
        ("reduce_scatter_merge_fn_to_trace_custom_ops", (WORLD, 2, "sum", torch.float32, torch.device("cpu"))),
        ("reduce_scatter_merge_fn_coalesced", (WORLD, 2, "sum", torch.float32, torch.device("cpu"))),
        ("all_gather_merge_fn_to_trace", (WORLD, 2, torch.float32, [torch.float32] * 2, 1)),
        ("all_gather_merge_fn_to_trace_custom_ops", (WORLD, 2, torch.float32, [torch.float32] * 2, 1)),
        ("all_gather_merge_fn_to_trace_functional", (WORLD, 2, torch.float32, [torch.float32] * 2, 1)),
    ],
)
def test_bodies_can_be_called_and_traced_like_inductors(world: None, name: str, rest: tuple[Any, ...]) -> None:
    inputs = [torch.ones(4, 3), torch.ones(8)]
    shapes = [[result.shape for result in getattr(m, name)(list(inputs), *rest)] for m in (door, inductors)]
    assert shapes[0] == shapes[1]
    traced = [make_fx(partial(_on_list, getattr(module, name), rest))(*inputs) for module in (door, inductors)]
    mode = "custom_ops" if name == "all_gather_merge_fn_to_trace_custom_ops" else None
    assert emitted(traced[0].graph, mode) == emitted(traced[1].graph, mode)


def _on_list(function: Callable[..., Any], rest: tuple[Any, ...], *inputs: torch.Tensor) -> Any:
    return function(list(inputs), *rest)


# -- predicates and keys ----------------------------------------------------------------------------------------------

PREDICATES = [name for name in sorted(public(inductors)) if name.startswith("is_") or name == "get_collective_type"]


def every_kind(b: GraphBuilder) -> fx.Graph:
    x, out = b.input("x", (4,)), b.input("out", (8,))
    first = b.all_gather(x, WORLD)
    waits = [
        first,
        b.all_gather(b.call(ATEN.add.Tensor, x, 1), WORLD),
        b.all_gather(b.call(ATEN.add.Tensor, x, b.call(ATEN.slice.Tensor, out, 0, 0, 4)), WORLD),
        b.reduce_scatter(b.call(ATEN.mul.Tensor, first, first), "sum", WORLD),
        b.all_reduce(x, "max", WORLD),
        b.wait(b.call(C10D.all_to_all_single.default, x, [2, 2], [2, 2], WORLD)),
        b.wait(b.call(C10D.all_gather_into_tensor_out.default, x, 2, WORLD, out=out)),
    ]
    used = b.call(ATEN.add.Tensor, b.reduce_scatter(first, "sum", WORLD), b.call(ATEN.neg.default, x))
    return b.finish(*waits, used).graph


@as_in_2_13
@pytest.mark.parametrize("name", PREDICATES)
def test_predicates_answer_as_inductors(builder: GraphBuilder, name: str) -> None:
    nodes = [node for node in every_kind(builder).nodes if node.op != "output"]
    answers = [[getattr(module, name)(node) for node in nodes] for module in (door, inductors)]
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 1


@pytest.mark.parametrize("mode", [None, "default", "custom_ops_multidtype"])
def test_keys_are_inductors(builder: GraphBuilder, mode: Any) -> None:
    nodes = list(every_kind(builder).nodes)
    assert [door.bucket_key(n, mode) for n in nodes] == [inductors.bucket_key(n, mode) for n in nodes]
    assert [door.get_full_bucket_key(n, mode) for n in nodes] == [inductors.get_full_bucket_key(n, mode) for n in nodes]


def test_casts_that_packing_can_do_are_recognised(builder: GraphBuilder) -> None:
    x = builder.input("x", (4,))
    shared = builder.call(CONVERT, x, torch.bfloat16)
    gm = builder.finish(
        builder.all_gather(builder.call(CONVERT, x, torch.bfloat16), WORLD), builder.all_gather(shared, WORLD), shared
    )
    for module in (door, inductors):
        assert [module.has_mergeable_all_gather_convert_dtype(n) for n in collectives_in(gm.graph)] == [True, False]


def test_descendants_are_all_that_depends_on_a_node(builder: GraphBuilder) -> None:
    graph = every_kind(builder)
    ours, theirs = door.collect_node_descendants(graph), inductors.collect_node_descendants(graph)
    assert {node: set(found) for node, found in ours.items() if found} == {n: set(f) for n, f in theirs.items() if f}


def test_the_smallest_type_is_the_unit_of_a_bucket() -> None:
    assert door.pick_bucket_dtype([torch.float32, torch.bfloat16, torch.int64]) is torch.bfloat16
    with pytest.raises(OptionError, match="pass at least one"):
        door.pick_bucket_dtype([])


# -- planning ---------------------------------------------------------------------------------------------------------


def test_the_cap_is_asked_for_every_bucket(builder: GraphBuilder) -> None:
    gm, asked = reductions(builder, 6), set[int]()

    def cap(index: int) -> float:
        asked.add(index)
        return (48 if index == 0 else 2 * 48) / door.MB

    assert [len(bucket) for bucket in door.bucket_all_reduce_by_mb(gm, cap)] == [2, 2]
    assert asked >= {0, 1, 2}


def test_what_stands_between_does_not_keep_collectives_apart(builder: GraphBuilder) -> None:
    xs = [builder.input(f"x{i}", (4,)) for i in range(6)]
    gm = builder.finish(*(builder.all_reduce(x, "sum", (WORLD, "1")[i % 2]) for i, x in enumerate(xs)))
    assert inductors.bucket_all_reduce_by_mb(gm, door.bucket_cap_mb_by_bucket_idx_default) == []
    assert [len(b) for b in door.bucket_all_reduce_by_mb(gm, door.bucket_cap_mb_by_bucket_idx_default)] == [3, 3]


def test_a_filter_on_waits_is_heard(builder: GraphBuilder) -> None:
    gm = gathers(builder, (torch.float32,) * 4)
    chosen = [user for start in collectives_in(gm.graph)[:3] for user in start.users]
    (bucket,) = door.bucket_all_gather_by_mb(gm, lambda _: 1.0, chosen.__contains__)
    assert [user for start in bucket for user in start.users] == chosen


def test_own_filters_and_keys_are_heard_but_never_mix_what_cannot_be(builder: GraphBuilder) -> None:
    xs = [builder.input(f"x{i}", (4,)) for i in range(4)]
    gm = builder.finish(*(builder.all_reduce(x, ("sum", "max")[i % 2], WORLD) for i, x in enumerate(xs)))
    buckets = door.greedy_bucket_collective_by_mb(gm, lambda _: 1.0, door.is_all_reduce_tensor, lambda _: "all alike")
    assert [[start.args[1] for start in bucket] for bucket in buckets] == [["sum", "sum"], ["max", "max"]]
    assert door.greedy_bucket_collective_by_mb(gm, lambda _: 1.0, lambda _: False, door.bucket_key) == []
    assert door.greedy_bucket_collective_by_mb(gm, lambda _: 1.0, door.is_all_reduce_tensor, id) == []


def test_replacing_a_function_of_the_door_works_as_it_does_in_inductor(
    builder: GraphBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gm = reductions(builder, 4)
    first_two = lambda gm, *_: [collectives_in(gm.graph)[:2]]  # noqa: E731
    monkeypatch.setattr(door, "greedy_bucket_collective_by_mb", first_two)
    door.bucket_all_reduce(gm)
    assert len(collectives_in(gm.graph)) == 3


def test_another_default_cap_holds(builder: GraphBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    gm = reductions(builder, 4)
    monkeypatch.setattr(door, "bucket_cap_mb_by_bucket_idx_default", lambda _: 2 * 48 / door.MB)
    door.bucket_all_reduce(gm)
    assert len(collectives_in(gm.graph)) == 2


def test_scatters_of_several_types_are_no_mode(builder: GraphBuilder) -> None:
    with pytest.raises(OptionError, match="custom_ops"):
        door.bucket_reduce_scatter(scatters(builder), mode="custom_ops_multidtype")


# -- merging ----------------------------------------------------------------------------------------------------------


def test_merging_tells_what_is_new_and_what_replaces_what(builder: GraphBuilder) -> None:
    gm = reductions(builder, 3)
    starts = collectives_in(gm.graph)[:2]
    waits = [user for start in starts for user in start.users]
    made, replaced = door.merge_all_reduce_bucket(gm.graph, starts)
    assert list(replaced) == waits
    assert set(replaced.values()) <= set(made) <= set(gm.graph.nodes)
    assert len(collectives_in(gm.graph)) == 2
    assert gm.graph.output_node().args[0][:2] == tuple(replaced.values())


def test_the_collective_and_its_wait_are_put_where_asked(builder: GraphBuilder) -> None:
    x, y = builder.input("x", (4,)), builder.input("y", (4,))
    waits = [builder.all_reduce(n, "sum", WORLD) for n in (x, y)]
    between = builder.call(ATEN.neg.default, y)
    behind = builder.call(ATEN.abs.default, between)
    gm = builder.finish(*waits, behind)
    made, _ = door.merge_all_reduce_bucket(gm.graph, collectives_in(gm.graph), None, between, behind)
    order = list(gm.graph.nodes)
    (start,) = collectives_in(gm.graph)
    wait = next(node for node in made if door.is_wait_tensor(node))
    assert order.index(start) < order.index(between) < order.index(wait) < order.index(behind)


def test_another_body_is_traced(builder: GraphBuilder) -> None:
    gm, before = reductions(builder, 3), reductions(GraphBuilder({WORLD: range(2)}), 3)

    def one_by_one(tensors: list[torch.Tensor], op: str) -> list[torch.Tensor]:
        return [C10D.wait_tensor(C10D.all_reduce(x + 0, op, WORLD)) for x in tensors]

    starts = collectives_in(gm.graph)
    made, replaced = door.process_collective_bucket(
        gm.graph, starts, one_by_one, lambda nodes: ([n.meta["val"] for n in nodes], "sum")
    )
    assert len(replaced) == 3
    assert targets(gm.graph)[ATEN.add.Tensor] == 3
    assert all("val" in node.meta for node in made)
    check_values(before, gm, builder)


def test_inputs_can_be_exchanged_for_what_they_are_made_of(builder: GraphBuilder) -> None:
    xs = [builder.input(f"x{i}", (4,)) for i in range(2)]
    sent = [builder.call(ATEN.clone.default, x) for x in xs]
    gm = builder.finish(*(builder.all_reduce(x, "sum", WORLD) for x in sent), *sent)
    sources = {node: node.args[0] for node in gm.graph.nodes if node.target is ATEN.clone.default}
    starts = collectives_in(gm.graph)
    rest = (WORLD, "sum", torch.float32, torch.device("cpu"))
    door.process_collective_bucket(
        gm.graph,
        starts,
        door.all_reduce_merge_fn_to_trace,
        lambda nodes: ([n.meta["val"] for n in nodes], *rest),
        input_transform=sources.__getitem__,
    )
    (merged,) = collectives_in(gm.graph)
    cat = merged.all_input_nodes[0]
    assert {node.op for part in cat.all_input_nodes for node in part.all_input_nodes} == {"placeholder"}
    assert targets(gm.graph)[ATEN.clone.default] == 2
    gm.graph.lint()


def test_a_replaced_body_is_traced_too(builder: GraphBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    gm = reductions(builder, 2)
    monkeypatch.setattr(door, "all_reduce_merge_fn_to_trace", inductors.all_reduce_merge_fn_to_trace)
    door.bucket_all_reduce(gm)
    assert len(collectives_in(gm.graph)) == 1
    gm.graph.lint()


@pytest.mark.skipif(torch_version() < (2, 13), reason="before torch 2.13 collectives take a group by its name alone")
def test_a_group_that_the_graph_computes_stays_a_node(world: None, builder: GraphBuilder) -> None:
    gm = reductions(builder)
    with gm.graph.inserting_before(collectives_in(gm.graph)[0]):
        group = gm.graph.call_function(dist.distributed_c10d._get_default_group)
    group.meta["val"] = dist.group.WORLD
    for start in collectives_in(gm.graph):
        start.args = (*start.args[:2], group)
    door.bucket_all_reduce(gm)
    (start,) = collectives_in(gm.graph)
    assert start.args[2] is group


def test_every_member_is_noted_on_the_merged_collective(builder: GraphBuilder) -> None:
    gm = reductions(builder, 3)
    for number, start in enumerate(collectives_in(gm.graph)):
        start.meta["stack_trace"] = f"line {number}"
    door.bucket_all_reduce(gm)
    (start,) = collectives_in(gm.graph)
    assert start.meta["stack_trace"] == "line 0"
    assert list(start.meta["bucketing_stack_trace_sources"]) == ["line 0", "line 1", "line 2"]
    assert len(start.meta["from_node"]) == 3


def test_a_graph_out_of_order_is_sorted_and_stays_so(builder: GraphBuilder) -> None:
    x, y = builder.input("x", (4,)), builder.input("y", (4,))
    first = builder.all_reduce(x, "sum", WORLD)
    use = builder.call(ATEN.neg.default, first)
    gm = builder.finish(use, builder.all_reduce(builder.call(ATEN.abs.default, y), "sum", WORLD))
    collectives_in(gm.graph)[0].append(use)
    door.bucket_all_reduce(gm)
    assert len(collectives_in(gm.graph)) == 1
    gm.graph.lint()


def test_what_cannot_be_one_collective_is_an_error(builder: GraphBuilder) -> None:
    xs = [builder.input(f"x{i}", (4,)) for i in range(2)]
    gm = builder.finish(*(builder.all_reduce(x, op, WORLD) for x, op in zip(xs, ("sum", "max"), strict=True)))
    before = str(gm.graph)
    with pytest.raises(GraphError, match="cannot share a collective"):
        door.merge_all_reduce_bucket(gm.graph, collectives_in(gm.graph))
    assert str(gm.graph) == before


def test_what_changes_between_planning_and_merging_is_read_anew(builder: GraphBuilder) -> None:
    gm = scatters(builder)
    buckets = door.bucket_reduce_scatter_by_mb(gm, lambda _: 100.0)
    (_, second) = collectives_in(gm.graph)
    second.args = (second.args[0], "max", *second.args[2:])
    with pytest.raises(GraphError, match="cannot share a collective"):
        door.merge_reduce_scatter(gm, buckets)
    second.args = (second.args[0], "sum", *second.args[2:])
    door.merge_reduce_scatter(gm, [[*bucket] for bucket in buckets])
    assert len(collectives_in(gm.graph)) == 1


@pytest.mark.parametrize("what", ["two waits", "cycle"])
def test_a_bucket_that_cannot_be_merged_is_left_as_it_is(builder: GraphBuilder, what: str) -> None:
    x = builder.input("x", (4,))
    first = builder.all_reduce(x, "sum", WORLD)
    second = builder.all_reduce(first if what == "cycle" else x, "sum", WORLD)
    (start,) = (n for n in first.all_input_nodes)
    again = builder.wait(start) if what == "two waits" else first
    gm = builder.finish(first, second, again)
    before = str(gm.graph)
    assert door.merge_all_reduce_bucket(gm.graph, collectives_in(gm.graph)) == ([], {})
    assert str(gm.graph) == before


def test_one_bucket_that_cannot_be_merged_does_not_keep_the_others(builder: GraphBuilder) -> None:
    x, y, z = (builder.input(name, (4,)) for name in "xyz")
    first = builder.all_gather(x, WORLD)
    dependent = builder.all_gather(first, WORLD)
    gm = builder.finish(dependent, builder.all_gather(y, WORLD), builder.all_gather(z, WORLD))
    a, b, c, d = collectives_in(gm.graph)
    door.merge_all_gather(gm, [[a, b], [c, d]])
    assert len(collectives_in(gm.graph)) == 3
