"""Gradients are recognised in every form, fused only with their like, and left right or refused with a reason."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node

from counterpoint.ir import ops
from counterpoint.ir.build import GraphBuilder, collectives_in
from counterpoint.ir.evaluate import evaluate
from counterpoint.ir.samples import sample_inputs
from counterpoint.options import CompileOptions
from counterpoint.passes.ledger import VerdictKind
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.passes.report import PassStatus, PipelineReport
from tests.support.ddp_forms import (
    FORMS,
    GROUPS,
    Form,
    by_keywords,
    by_reciprocal,
    compressed,
    compressed_then_cast,
    divided,
    divided_afterwards,
    in_place,
    not_scaled,
    of_forms,
    reduced,
    through_views,
)

ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional
METHODS = ("concat", "coalesced")


def fused(gm: GraphModule, builder: GraphBuilder, text: str = "fuse-ddp", **options: Any) -> tuple[GraphModule, Any]:
    """The graph after the pass, which must compute what it computed on every rank, and the report."""
    after = copy.deepcopy(gm)
    chosen = CompileOptions.from_mapping({"verify": "full", "on_error": "raise", **options})
    report = run_pipeline(after, Pipeline.parse(text), options=chosen, groups=builder.groups)
    assert all(record.status is PassStatus.DONE for record in report.passes)
    if not has_unbacked(gm):
        same_values(gm, after, builder)
    return after, report


def has_unbacked(gm: GraphModule) -> bool:
    return any(node.target is ATEN.nonzero.default for node in gm.graph.nodes)


def same_values(one: GraphModule, other: GraphModule, builder: GraphBuilder) -> None:
    inputs = sample_inputs(one, 4, seed=3)
    for left, right in zip(*(evaluate(gm, inputs, builder.groups) for gm in (one, other)), strict=True):
        for expected, value in zip(left, right, strict=True):
            assert expected.dtype is value.dtype
            assert torch.equal(expected, value)


def reductions(gm: GraphModule) -> int:
    return len(collectives_in(gm.graph))


def targets(gm: GraphModule) -> list[Any]:
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def codes(report: PipelineReport) -> list[str]:
    return [entry.verdict.code or entry.verdict.kind.value for entry in report.ledger]


# -- forms that are recognised ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_form_is_fused(form: Form, method: str) -> None:
    after, report = fused(*of_forms(form, meta=form is not divided), f"fuse-ddp{{method={method}}}")
    assert reductions(after) == 1
    assert codes(report) == ["bucketed"] * 3


@pytest.mark.parametrize("form", [divided, by_reciprocal, divided_afterwards, in_place, by_keywords, through_views])
def test_what_all_members_share_is_done_once(form: Form) -> None:
    scales = (ATEN.div.Tensor, ATEN.mul.Tensor)
    gm, builder = of_forms(form)
    before = sum(target in scales for target in targets(gm))
    after, _ = fused(gm, builder)
    assert sum(target in scales for target in targets(after)) == before // 3
    after, _ = fused(gm, builder, "fuse-ddp{method=coalesced}")
    assert not any(target in scales for target in targets(after))
    assert any(target in (ATEN._foreach_div.Scalar, ATEN._foreach_mul.Scalar) for target in targets(after))


def test_a_cast_stays_with_its_gradient_unless_a_scale_lies_behind_it() -> None:
    """Packing before the cast would make the bucket larger."""
    after, _ = fused(*of_forms(compressed))
    assert targets(after).count(ATEN._to_copy.default) == 3
    assert targets(after).count(ATEN.div.Tensor) == 1
    after, _ = fused(*of_forms(compressed_then_cast))
    assert targets(after).count(ATEN._to_copy.default) == 1
    assert targets(after).count(ATEN.div.Tensor) == 1


def test_different_divisors_share_a_bucket_and_keep_their_own() -> None:
    def halved(b: GraphBuilder, x: Node) -> Node:
        return reduced(b, b.call(ATEN.div.Tensor, x, 2))

    for method in METHODS:
        after, _ = fused(*of_forms(divided, halved, divided), f"fuse-ddp{{method={method}}}")
        assert reductions(after) == 1
        assert targets(after).count(ATEN.div.Tensor) == 3


def test_an_integer_and_a_float_divisor_of_one_value_are_not_mistaken_for_each_other() -> None:
    def scaled(by: float) -> Form:
        return lambda b, x: reduced(b, b.call(ATEN.mul.Tensor, b.call(ATEN._to_copy.default, x, dtype=torch.int64), by))

    after, report = fused(*of_forms(scaled(2), scaled(2.0), scaled(2)))
    assert reductions(after) == 2
    assert codes(report) == ["bucketed", "no-partner", "bucketed"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shapes", [((0, 4), (4,), (0,)), ((), (1,), ())])
def test_zero_sizes_and_scalars(method: str, shapes: Any) -> None:
    after, _ = fused(*of_forms(divided, shapes=shapes), f"fuse-ddp{{method={method}}}")
    assert reductions(after) == 1


# -- like with like ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_groups_ops_and_types_do_not_mix(method: str) -> None:
    """Two of each kind in alternation: one bucket of each kind, whatever the order."""
    builder = GraphBuilder(GROUPS)
    kinds = [
        (op, group, dtype) for op in ("sum", "max") for group in GROUPS for dtype in (torch.float32, torch.bfloat16)
    ]
    inputs = [builder.input(f"x{i}", (3, 2), dtype) for i, (_, _, dtype) in enumerate(kinds * 2)]
    waits = [
        reduced(builder, builder.call(ATEN.div.Tensor, x, 2), op, group)
        for x, (op, group, _) in zip(inputs, kinds * 2, strict=True)
    ]
    after, report = fused(builder.finish(*waits), builder, f"fuse-ddp{{method={method}}}")
    assert reductions(after) == len(kinds)
    assert codes(report) == ["bucketed"] * 2 * len(kinds)


def test_devices_do_not_mix() -> None:
    """Read only: fake tensors of a device that need not exist."""
    builder = GraphBuilder(GROUPS)
    names = ("cpu", "cuda", "cpu", "cuda")
    inputs = []
    for number, device in enumerate(names):
        builder.device = device
        inputs.append(builder.input(f"x{number}", (4,)))
    gm = builder.finish(*(divided(builder, x) for x in inputs))
    options = CompileOptions(verify="structural", on_error="raise")
    report = run_pipeline(gm, Pipeline.parse("fuse-ddp"), options=options, groups=builder.groups)
    assert codes(report) == ["bucketed"] * 4
    found = [ops.tensors(start, ("input",))[0].meta["val"].device.type for start in collectives_in(gm.graph)]
    assert sorted(found) == ["cpu", "cuda"]


# -- buckets ----------------------------------------------------------------------------------------------------------


def test_the_first_bucket_is_small_and_the_others_fill_up() -> None:
    gm, builder = of_forms(divided, shapes=[(64, 64)] * 9)
    kib16 = 16 / 1024
    after, report = fused(gm, builder, f"fuse-ddp{{cap-mb={4 * kib16} first-cap-mb={kib16}}}")
    sizes = [ops.tensors(start, ("input",))[0].meta["val"].numel() // 4096 for start in collectives_in(after.graph)]
    assert sizes == [1, 4, 4]
    assert codes(report) == ["bucket-full"] + ["bucketed"] * 8


def test_gradients_share_a_bucket_in_the_order_in_which_they_become_ready() -> None:
    """The reductions stand in the opposite order of the gradients."""
    builder = GraphBuilder(GROUPS)
    inputs = [builder.input(f"x{i}", (i + 1,)) for i in range(4)]
    grads = [builder.call(ATEN.neg.default, x) for x in inputs]
    waits = [reduced(builder, grad) for grad in reversed(grads)]
    after, _ = fused(builder.finish(*waits), builder)
    (cat,) = (node for node in after.graph.nodes if node.target is ATEN.cat.default)
    assert [part.meta["val"].numel() for part in ops.argument(cat, "tensors")] == [1, 2, 3, 4]


def test_a_bucket_starts_when_its_last_gradient_is_there_and_not_where_the_last_reduction_stood() -> None:
    builder = GraphBuilder(GROUPS)
    x, y = (builder.input(name, (4,)) for name in "xy")
    grads = [builder.call(ATEN.neg.default, value) for value in (x, y)]
    other = builder.call(ATEN.exp.default, x)
    gm = builder.finish(*(reduced(builder, grad) for grad in grads), other)
    after, _ = fused(gm, builder)
    (start,) = collectives_in(after.graph)
    assert start < next(node for node in after.graph.nodes if node.target is ATEN.exp.default)


# -- what inductor's pass gets wrong, and other traps -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_symbolic_sizes_stay_symbolic(method: str, dtype: torch.dtype) -> None:
    builder = GraphBuilder(GROUPS)
    rows = builder.symbol("rows", 8)
    waits = [divided(builder, builder.input(f"x{i}", (rows, i + 1), dtype)) for i in range(3)]
    gm = builder.finish(*waits)
    after, _ = fused(gm, builder, f"fuse-ddp{{method={method}}}")
    assert reductions(after) == 1
    assert all(type(node.meta["val"].shape[0]) is torch.SymInt for node in after.graph.find_nodes(op="placeholder"))
    assert not rows.node.expr.is_number
    other_size = [[torch.full((5, i + 1), float(rank + i), dtype=dtype) for i in range(3)] for rank in range(4)]
    before, now = (evaluate(one, other_size, builder.groups) for one in (gm, after))
    assert all(torch.equal(a, b) for x, y in zip(before, now, strict=True) for a, b in zip(x, y, strict=True))


def test_unknown_sizes_are_refused_with_a_reason() -> None:
    builder = GraphBuilder(GROUPS)
    xs = [builder.input(f"x{i}", (8,)) for i in range(2)]
    waits = [
        divided(
            builder, builder.call(ATEN._to_copy.default, builder.call(ATEN.nonzero.default, x), dtype=torch.float32)
        )
        for x in xs
    ]
    after, report = fused(builder.finish(*waits), builder)
    assert reductions(after) == 2
    assert codes(report) == ["unknown-size", "unknown-size"]


def test_a_collective_without_a_wait_or_with_two_is_refused_with_a_reason() -> None:
    builder = GraphBuilder(GROUPS)
    xs = [builder.input(f"x{i}", (4,)) for i in range(4)]
    builder.call(C10D.all_reduce.default, xs[0], "sum", "dp")
    start = builder.call(C10D.all_reduce.default, xs[1], "sum", "dp")
    gm = builder.finish(builder.wait(start), builder.wait(start), *(divided(builder, x) for x in xs[2:]))
    report = run_pipeline(
        gm, Pipeline.parse("fuse-ddp"), options=CompileOptions(on_error="raise"), groups=builder.groups
    )
    assert codes(report) == ["no-wait", "several-waits", "bucketed", "bucketed"]


@pytest.mark.parametrize("method", METHODS)
def test_a_buffer_reduced_in_place_and_read_afterwards_is_not_touched(method: str) -> None:
    builder = GraphBuilder(GROUPS)
    outputs = []
    for i in range(2):
        half = builder.call(ATEN.div.Tensor, builder.input(f"x{i}", (4,)), 4)
        outputs += [
            builder.wait(builder.call(C10D.all_reduce_.default, half, "sum", "dp")),
            builder.call(ATEN.neg.default, half),
        ]
    after, report = fused(builder.finish(*outputs), builder, f"fuse-ddp{{method={method}}}")
    assert reductions(after) == 2
    assert codes(report) == ["written-buffer", "written-buffer"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scaled", [False, True])
def test_an_input_that_is_overwritten_between_two_reductions_keeps_its_value(method: str, scaled: bool) -> None:
    builder = GraphBuilder(GROUPS)
    x, y = (builder.input(name, (4,)) for name in "xy")
    own = builder.call(ATEN.clone.default, x)
    form = divided if scaled else not_scaled
    first = form(builder, own)
    write = builder.call(ATEN.copy_.default, own, y)
    gm = builder.finish(first, form(builder, builder.call(ATEN.neg.default, y)), write)
    after, _ = fused(gm, builder, f"fuse-ddp{{method={method}}}")
    assert reductions(after) == 1


def test_a_scaled_value_that_is_overwritten_before_it_is_sent_is_not_scaled_again() -> None:
    builder = GraphBuilder(GROUPS)
    waits = []
    for i in range(2):
        half = builder.call(ATEN.div.Tensor, builder.input(f"x{i}", (4,)), 4)
        builder.call(ATEN.add_.Tensor, half, 1)
        waits.append(reduced(builder, half))
    after, _ = fused(builder.finish(*waits), builder)
    assert reductions(after) == 1
    assert targets(after).count(ATEN.div.Tensor) == 2


@pytest.mark.parametrize("method", METHODS)
def test_a_result_copied_into_its_gradient_is_there_for_who_reads_the_gradient_next(method: str) -> None:
    builder = GraphBuilder(GROUPS)
    outputs = []
    for i in range(3):
        own = builder.call(ATEN.clone.default, builder.input(f"x{i}", (4,)))
        outputs.append(builder.call(ATEN.copy_.default, own, divided(builder, own)))
        outputs.append(builder.call(ATEN.neg.default, own))
    after, _ = fused(builder.finish(*outputs), builder, f"fuse-ddp{{method={method}}}")
    assert reductions(after) == 1


def test_two_nodes_that_share_one_fake_tensor_are_both_sent() -> None:
    gm, builder = of_forms(divided, shapes=[(4,)] * 3)
    shared = next(node for node in gm.graph.nodes if node.target is ATEN.div.Tensor).meta["val"]
    for node in gm.graph.nodes:
        if node.op == "call_function":
            node.meta["val"] = shared
    after, _ = fused(gm, builder)
    assert reductions(after) == 1


@pytest.mark.parametrize("method", METHODS)
def test_one_gradient_reduced_twice_is_sent_twice(method: str) -> None:
    builder = GraphBuilder(GROUPS)
    half = builder.call(ATEN.div.Tensor, builder.input("x", (4,)), 4)
    gm = builder.finish(reduced(builder, half), reduced(builder, half), half)
    after, report = fused(gm, builder, f"fuse-ddp{{method={method}}}")
    assert reductions(after) == 1
    assert codes(report) == ["bucketed", "bucketed"]


def test_a_result_that_is_read_before_the_next_gradient_moves_its_readers() -> None:
    builder = GraphBuilder(GROUPS)
    x, y = (builder.input(name, (4,)) for name in "xy")
    first = builder.call(ATEN.exp.default, divided(builder, x))
    second = divided(builder, builder.call(ATEN.neg.default, y))
    after, _ = fused(builder.finish(first, second), builder)
    assert reductions(after) == 1


def test_a_reduction_that_a_later_one_of_its_group_needs_is_no_gradient() -> None:
    builder = GraphBuilder(GROUPS)
    x, y = (builder.input(name, (4,)) for name in "xy")
    statistics = reduced(builder, x)
    gm = builder.finish(divided(builder, builder.call(ATEN.mul.Tensor, y, statistics)), divided(builder, y))
    after, report = fused(gm, builder)
    assert reductions(after) == 2
    assert codes(report) == ["not-a-gradient", "bucketed", "bucketed"]


def test_a_norm_over_another_group_does_not_hide_the_gradients() -> None:
    builder = GraphBuilder(GROUPS)
    waits = [divided(builder, builder.input(f"x{i}", (4,))) for i in range(2)]
    norm = reduced(builder, builder.call(ATEN.add.Tensor, *waits), group="near")
    after, report = fused(builder.finish(*waits, norm), builder)
    assert reductions(after) == 2
    assert codes(report) == ["bucketed", "bucketed", "no-partner"]


def test_gradients_on_both_sides_of_a_barrier_do_not_meet() -> None:
    builder = GraphBuilder(GROUPS)
    xs = [builder.input(f"x{i}", (4,)) for i in range(4)]
    waits = [divided(builder, x) for x in xs[:2]]
    builder.graph.call_function(print, ("here",)).meta["val"] = None
    waits += [divided(builder, x) for x in xs[2:]]
    gm = builder.finish(*waits)
    options = CompileOptions(verify="structural", on_error="raise")
    report = run_pipeline(gm, Pipeline.parse("fuse-ddp"), options=options, groups=builder.groups)
    order = [node.target is print for node in gm.graph.nodes if node.target is print or ops.is_collective(node)]
    assert order == [False, True, False]
    assert codes(report) == ["bucketed"] * 4


def test_an_empty_graph_and_one_without_collectives() -> None:
    builder = GraphBuilder(GROUPS)
    x = builder.input("x", (4,))
    after, report = fused(builder.finish(x), builder)
    assert reductions(after) == 0
    assert not codes(report)


# -- rounding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "op", "code"), [("dp", "sum", "rounding"), ("dp", "max", "bucketed"), ("near", "sum", "bucketed")]
)
def test_bitwise_forbids_what_may_change_the_order_of_a_sum(group: str, op: str, code: str) -> None:
    def form(b: GraphBuilder, x: Node) -> Node:
        return reduced(b, b.call(ATEN.div.Tensor, x, 3), op, group)

    for method in METHODS:
        after, report = fused(*of_forms(form), f"fuse-ddp{{method={method}}}", bitwise=True)
        assert codes(report) == [code] * 3
        # A foreach operator may round a division by 3 in another way.
        assert ATEN._foreach_div.Scalar not in targets(after)


def test_the_ledger_names_the_bucket() -> None:
    _, report = fused(*of_forms(divided))
    (verdict,) = {entry.verdict for entry in report.ledger}
    assert verdict.kind is VerdictKind.BUCKETED
    assert verdict.partner == "gradient bucket 0 of 3"
