"""Buckets on real gloo ranks: every kind, mode and element type gives the bits that the single collectives gave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.fx import GraphModule, Node

from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.samples import sample_inputs
from tests.support.compare import compare
from tests.support.gloo import RanksByWorldSize
from tests.support.rewritten import check_on_ranks, rewrite
from tests.support.strategies import Case, distributed_graphs

ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
MODES = ("functional", "custom", "coalesced")
ARITHMETIC = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
TYPES = {
    "all-reduce": ARITHMETIC,
    "reduce-scatter": ARITHMETIC,
    "all-gather": (*ARITHMETIC, torch.bool, torch.complex64),
    "all-to-all": (*ARITHMETIC, torch.bool),
}
"""What gloo can send."""
PARTITIONS: dict[int, Any] = {
    2: {"world": (0, 1), "near": (0, 1)},
    4: {"world": (0, 1, 2, 3), "near": ((0, 1), (2, 3))},
}
GROUPS: dict[int, Any] = {2: {"world": (0, 1), "near": (0, 1)}, 4: {"world": (0, 1, 2, 3), "near": (0, 1)}}
SHAPES = ((4,), (8, 3), (12, 1, 2))


def communicated(b: GraphBuilder, kind: str, x: Node, op: str = "sum", group: str = "world") -> Node:
    """The collective of a kind, waited for."""
    if kind == "all-reduce":
        return b.all_reduce(x, op, group)
    if kind == "all-gather":
        return b.all_gather(x, group)
    if kind == "reduce-scatter":
        return b.reduce_scatter(x, op, group)
    size = len(b.groups[group])
    rows = [x.meta["val"].shape[0] // size] * size
    return b.wait(b.call(C10D.all_to_all_single.default, x, rows, rows, group))


def of_kind(kind: str, world: int, dtypes: Any, shapes: Any = SHAPES) -> tuple[GraphModule, GraphBuilder]:
    """Each shape in each element type, types in turn, the results used by something that reads them."""
    b = GraphBuilder(GROUPS[world])
    xs = [b.input(f"x{i}_{k}", s, dtype) for i, s in enumerate(shapes) for k, dtype in enumerate(dtypes)]
    results = [communicated(b, kind, x) for x in xs]
    return b.finish(*results, *(b.call(ATEN.eq.Scalar, result, 3) for result in results)), b


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_mode_and_type(ranks: RanksByWorldSize, kind: str, mode: str, world: int) -> None:
    dtypes = TYPES[kind]
    passes = f"bucket-{kind}{{mode={mode}}}"
    after = check_on_ranks(ranks, world, *of_kind(kind, world, dtypes), passes, PARTITIONS[world])
    if mode != "coalesced":
        assert after.left == len(dtypes)
        assert set(after.codes) == {"bucketed"}
        return
    single = {"all-to-all": dtypes, "all-gather": (torch.complex64,)}.get(kind, ())
    # There is no coalesced exchange, and gloo's coalesced gather does not know complex numbers.
    assert after.codes.count("no-coalesced-form") == len(single) * len(SHAPES)
    assert after.left == len(dtypes) + len(single) * (len(SHAPES) - 1)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("mode", ["functional", "custom"])
@pytest.mark.parametrize("kind", ["all-gather", "all-to-all"])
def test_all_element_types_travel_as_bytes_in_one_bucket(
    ranks: RanksByWorldSize, kind: str, mode: str, world: int
) -> None:
    passes = f"bucket-{kind}{{mode={mode} multi-dtype=true}}"
    # An odd number of bytes first: what follows lies at an odd address.
    graph = of_kind(kind, world, (torch.uint8, *TYPES[kind]), shapes=((4,), (4, 3)))
    assert check_on_ranks(ranks, world, *graph, passes, PARTITIONS[world]).left == 1


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("mode", MODES)
def test_two_groups_and_all_reductions_in_one_graph(ranks: RanksByWorldSize, mode: str, world: int) -> None:
    b = GraphBuilder(GROUPS[world])
    kinds = [(op, group) for op in ("sum", "max", "min", "product", "avg") for group in ("world", "near")] * 2
    xs = [b.input(f"x{i}", SHAPES[i % 3]) for i in range(len(kinds))]
    reduced = [communicated(b, "all-reduce", x, op, group) for x, (op, group) in zip(xs, kinds, strict=True)]
    scattered = [communicated(b, "reduce-scatter", x, op, group) for x, (op, group) in zip(xs, kinds, strict=True)]
    gathered = [communicated(b, "all-gather", x, group=group) for x, (_, group) in zip(xs, kinds, strict=True)]
    passes = ",".join(f"bucket-{kind}{{mode={mode}}}" for kind in ("all-reduce", "reduce-scatter", "all-gather"))
    after = check_on_ranks(ranks, world, b.finish(*reduced, *scattered, *gathered), b, passes, PARTITIONS[world])
    assert after.left == 10 + 10 + 2
    assert set(after.codes) == {"bucketed"}


def cast(b: GraphBuilder, x: Node, dtype: torch.dtype) -> Node:
    return b.call(ATEN._to_copy.default, x, dtype=dtype)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_casts_are_folded_into_the_packing(ranks: RanksByWorldSize, kind: str, world: int) -> None:
    b = GraphBuilder(GROUPS[world])
    sent = [cast(b, b.input(f"x{i}", shape), torch.bfloat16) for i, shape in enumerate(SHAPES)]
    results = [cast(b, communicated(b, kind, x), torch.float32) for x in sent]
    after = check_on_ranks(ranks, world, b.finish(*results), b, f"bucket-{kind}{{mode=custom}}", PARTITIONS[world])
    casts = sum(node.target is ATEN._to_copy.default for node in after.gm.graph.nodes)
    assert after.left == 1
    assert casts == (3 if kind == "all-gather" else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_identical_collectives_become_one(ranks: RanksByWorldSize, kind: str) -> None:
    b = GraphBuilder(GROUPS[2])
    x, y = b.input("x", (4, 2)), b.input("y", (4, 2))
    results = [communicated(b, kind, value) for value in (x, y, x, y, x)]
    gm = b.finish(*(b.call(ATEN.mul.Tensor, result, i) for i, result in enumerate(results)))
    after = check_on_ranks(ranks, 2, gm, b, f"dedup-collectives,bucket-{kind}", PARTITIONS[2])
    assert after.left == 1


def test_chains_of_all_kinds_meet_without_a_cycle(ranks: RanksByWorldSize) -> None:
    """Sharded gradients: scatter, reduce over the other dimension, gather; four chains side by side."""
    b = GraphBuilder(GROUPS[4])
    outputs = []
    for i, x in enumerate([b.input(f"x{i}", (8, i + 1)) for i in range(4)]):
        scattered = b.reduce_scatter(x, "sum", "world")
        reduced = b.all_reduce(b.call(ATEN.mul.Tensor, scattered, 2), "max", "near")
        outputs.append(b.all_gather(b.call(ATEN.add.Tensor, reduced, i), "world"))
    passes = "bucket-all-gather,bucket-reduce-scatter,bucket-all-reduce"
    assert check_on_ranks(ranks, 4, b.finish(*outputs), b, passes, PARTITIONS[4]).left == 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS[:3])
def test_symbolic_sizes_run_at_another_size(ranks: RanksByWorldSize, kind: str, mode: str) -> None:
    b = GraphBuilder(GROUPS[2])
    xs = [b.input("x", (b.symbol("rows", 8), 2)), b.input("y", (4, 3))]
    gm = b.finish(*(communicated(b, kind, x) for x in xs))
    after = rewrite(gm, b, f"bucket-{kind}{{mode={mode}}}")
    assert after.left == 1
    inputs = sample_inputs(gm, 2, seed=1)
    longer = [[torch.cat([x, x + 1, x]), *rest] for x, *rest in inputs]
    for given_inputs in (inputs, longer):
        compare(ranks(2), gm, after.gm, given_inputs, PARTITIONS[2])


ALL = "dedup-collectives,bucket-reduce-scatter{%s},bucket-all-reduce{%s},bucket-all-gather{%s},bucket-all-to-all{%s}"
DRAWN = {2: {"world": (0, 1)}, 4: {"world": (0, 1, 2, 3), "near": ((0, 1), (2, 3)), "far": ((0, 2), (1, 3))}}


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("mode", ["", "mode=custom", "mode=coalesced"])
def test_generated_graphs(ranks: RanksByWorldSize, mode: str, world: int) -> None:
    passes = ALL.replace("bucket-all-to-all{%s}", "bucket-all-to-all").replace("%s", mode)

    @settings(
        max_examples=8,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    @given(distributed_graphs(world_sizes=(world,), moved_only=False, symbolic=False))
    def agree(case: Case) -> None:
        b = GraphBuilder(dict(case.groups))
        compare(ranks(world), case.gm, rewrite(case.gm, b, passes).gm, case.inputs, DRAWN[world])

    agree()
