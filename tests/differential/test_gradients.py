"""Fused gradients on real gloo ranks: every form and method, and graphs on which fusing is known to go wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.fx import Node

from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.samples import sample_inputs
from tests.support.compare import compare
from tests.support.ddp_forms import FORMS, Form, of_forms
from tests.support.ddp_graphs import ddp_graphs
from tests.support.faulty_graphs import FAULTY, Build, symbolic_sizes
from tests.support.gloo import RanksByWorldSize
from tests.support.rewritten import check_on_ranks, rewrite
from tests.support.strategies import Case

ATEN = torch.ops.aten
METHODS = ("concat", "custom", "coalesced")
GROUPS: dict[int, Any] = {2: {"dp": (0, 1), "near": (0, 1)}, 4: {"dp": (0, 1, 2, 3), "near": (0, 1)}}
PARTITIONS: dict[int, Any] = {2: GROUPS[2], 4: {"dp": (0, 1, 2, 3), "near": ((0, 1), (2, 3))}}


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("method", METHODS)
def test_every_form_alone(ranks: RanksByWorldSize, method: str, world: int) -> None:
    for form in FORMS:
        gm, b = of_forms(form, groups=GROUPS[world])
        passes = f"fuse-ddp{{method={method}}},schedule-waits"
        after = check_on_ranks(ranks, world, gm, b, passes, PARTITIONS[world])
        assert after.left == 1, form.__name__


def narrowed(before: torch.dtype, after: torch.dtype) -> Form:
    """Mixed precision: sent in another element type than the gradient has, divided on one side or the other."""

    def form(b: GraphBuilder, x: Node) -> Node:
        sent = b.call(ATEN.div.Tensor, b.call(ATEN._to_copy.default, x, dtype=before), 2)
        return b.call(ATEN._to_copy.default, b.call(ATEN.div.Tensor, b.all_reduce(sent, "sum", "dp"), 2), dtype=after)

    return form


@pytest.mark.parametrize("method", METHODS)
def test_mixed_precision(ranks: RanksByWorldSize, method: str) -> None:
    for sent in (torch.bfloat16, torch.float16, torch.float64):
        gm, b = of_forms(narrowed(sent, torch.float32), groups=GROUPS[2])
        assert check_on_ranks(ranks, 2, gm, b, f"fuse-ddp{{method={method}}}", GROUPS[2]).left == 1


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("method", METHODS)
def test_two_groups_all_reductions_and_types_in_one_graph(ranks: RanksByWorldSize, method: str, world: int) -> None:
    b = GraphBuilder(GROUPS[world])
    kinds = [
        (op, group, dtype)
        for op in ("sum", "avg", "max")
        for group in ("dp", "near")
        for dtype in (torch.float32, torch.bfloat16)
    ] * 2
    xs = [b.input(f"x{i}", ((4,), (3, 2))[i % 2], dtype) for i, (_, _, dtype) in enumerate(kinds)]
    waits = [
        b.all_reduce(b.call(ATEN.div.Tensor, x, 2), op, group) for x, (op, group, _) in zip(xs, kinds, strict=True)
    ]
    after = check_on_ranks(ranks, world, b.finish(*waits), b, f"fuse-ddp{{method={method}}}", PARTITIONS[world])
    assert after.left == len(kinds) // 2
    assert set(after.codes) == {"bucketed"}


PIPELINES = (
    *(f"fuse-ddp{{method={method}}},schedule-waits" for method in METHODS),
    *(
        f"bucket-all-reduce{{mode={mode}}},bucket-all-gather{{mode={mode}{extra}}},schedule-waits"
        for mode, extra in (("functional", " multi-dtype=true"), ("custom", " multi-dtype=true"), ("coalesced", ""))
    ),
)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("build", FAULTY, ids=lambda build: build.__name__)
def test_graphs_that_are_known_to_go_wrong_are_right_or_left_alone(
    ranks: RanksByWorldSize, build: Build, world: int
) -> None:
    for passes in PIPELINES if world == 2 else PIPELINES[::2]:
        b = GraphBuilder(GROUPS[world])
        after = check_on_ranks(ranks, world, b.finish(*build(b)), b, passes, PARTITIONS[world])
        assert all(after.codes), passes


@pytest.mark.parametrize("passes", PIPELINES)
def test_symbolic_sizes_run_at_another_size(ranks: RanksByWorldSize, passes: str) -> None:
    b = GraphBuilder(GROUPS[2])
    gm = b.finish(*symbolic_sizes(b))
    after = rewrite(gm, b, passes)
    assert after.left == 1
    longer = [[torch.cat([x, x + 1, x]), *rest] for x, *rest in sample_inputs(gm, 2)]
    compare(ranks(2), gm, after.gm, longer, GROUPS[2])


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("passes", ["fuse-ddp,schedule-waits", "fuse-ddp{method=coalesced cap-mb=0.0001}"])
def test_generated_graphs(ranks: RanksByWorldSize, passes: str, world: int) -> None:
    groups: Any = {2: {"world": (0, 1)}, 4: {"world": range(4), "near": ((0, 1), (2, 3)), "far": ((0, 2), (1, 3))}}

    @settings(
        max_examples=10,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    @given(ddp_graphs(world_sizes=(world,), symbolic=False))
    def agree(case: Case) -> None:
        after = rewrite(case.gm, GraphBuilder(dict(case.groups)), passes)
        compare(ranks(world), case.gm, after.gm, case.inputs, groups[world])

    agree()
