"""Which form each collective gets in a graph, where the new form stands, and what is left alone with which reason."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node

from counterpoint.cost.capabilities import Capabilities, CapabilityTable
from counterpoint.cost.model import CostModel
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.launches import launches_of
from counterpoint.options import CompileOptions
from counterpoint.passes.ledger import Verdict
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from tests.support.lowering import one_host, table_of, two_hosts

ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional
EAGER, GENERATED = CostModel(fuses=False), CostModel(fuses=True)


def lower(
    builder: GraphBuilder,
    *outputs: Node,
    found: Capabilities | CapabilityTable | None = None,
    model: CostModel = GENERATED,
    passes: str = "lower-collectives",
    **options: Any,
) -> tuple[GraphModule, list[Verdict]]:
    """Run the pass with values compared on simulated ranks; the graph and the verdicts."""
    gm = builder.finish(*outputs)
    ranks = len(next(iter(builder.groups.values())))
    found = one_host(ranks) if found is None else found
    table = found if isinstance(found, CapabilityTable) else table_of(dict.fromkeys(builder.groups, found))
    given = {"verify": "paranoid", "on_error": "raise", **options}
    report = run_pipeline(
        gm,
        Pipeline.parse(passes),
        options=CompileOptions(**given),
        groups=builder.groups,
        cost_model=model,
        capabilities=table,
    )
    return gm, [entry.verdict for entry in report.ledger]


def calls(gm: GraphModule) -> list[str]:
    return [str(node.target).split(".")[1] for node in gm.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


@pytest.fixture
def b() -> GraphBuilder:
    return GraphBuilder({"tp": range(2)})


def test_a_dead_input_holds_the_result(b: GraphBuilder) -> None:
    gm, (verdict,) = lower(b, b.all_reduce(b.call(ATEN.exp.default, b.input("x", (4,))), group="tp"))
    assert calls(gm) == ["exp", "shm_one_shot_all_reduce_"]
    assert verdict.partner == "one-shot, in place"
    assert verdict.before_us is not None
    assert verdict.after_us is not None
    assert verdict.before_us > 10 * verdict.after_us
    assert str(verdict).startswith("lowered to one-shot, in place (40")


@pytest.mark.parametrize("how", ["input", "returned", "read", "view", "transposed", "twice"])
def test_an_input_that_lives_on_does_not(b: GraphBuilder, how: str) -> None:
    x = b.input("x", (4, 4))
    value = x if how == "input" else b.call(ATEN.exp.default, x)
    sent = {"view": ATEN.view.default, "transposed": ATEN.t.default}.get(how)
    given = value if sent is None else b.call(sent, value, *([[16]] if how == "view" else []))
    result = b.all_reduce(given, group="tp")
    rest = {"returned": [value], "read": [b.call(ATEN.neg.default, value)], "view": [value]}.get(how, [])
    if how == "twice":
        rest = [b.all_reduce(given, reduce_op="max", group="tp")]
    gm, verdicts = lower(b, result, *rest)
    assert "shm_one_shot_all_reduce" in calls(gm)
    assert verdicts[0].partner == "one-shot"


def test_a_read_before_the_wait_is_no_life_after_it(b: GraphBuilder) -> None:
    sent = b.call(ATEN.exp.default, b.input("x", (4,)))
    started = b.call(C10D.all_reduce.default, sent, "sum", "tp")
    beside = b.call(ATEN.neg.default, sent)
    gm, _ = lower(b, b.call(C10D.wait_tensor.default, started), beside)
    assert calls(gm) == ["exp", "neg", "shm_one_shot_all_reduce_"]


def test_what_is_received_comes_late_and_what_is_sent_goes_early(b: GraphBuilder) -> None:
    x = b.call(ATEN.exp.default, b.input("x", (4, 4)))
    gathered = b.call(C10D.all_gather_into_tensor.default, x, 2, "tp")
    scattered = b.call(C10D.reduce_scatter_tensor.default, x, "sum", 2, "tp")
    beside = b.call(ATEN.neg.default, x)
    waits = [b.call(C10D.wait_tensor.default, started) for started in (gathered, scattered)]
    gm, verdicts = lower(b, *waits, beside)
    assert calls(gm) == ["exp", "shm_reduce_scatter", "neg", "shm_all_gather"]
    assert {verdict.partner for verdict in verdicts} == {"shared memory"}


def test_coalesced_collectives_are_taken_apart(b: GraphBuilder) -> None:
    values = [b.call(ATEN.exp.default, b.input(name, (4,))) for name in "xy"]
    started = b.call(C10D.all_reduce_coalesced.default, values, "sum", "tp")
    parts = [b.call(operator.getitem, started, i) for i in range(2)]
    gm, (verdict,) = lower(b, *(b.call(C10D.wait_tensor.default, part) for part in parts))
    assert calls(gm) == ["exp", "exp", "shm_one_shot_all_reduce_", "shm_one_shot_all_reduce_"]
    assert verdict.kind.value == "lowered"


def test_what_one_collective_gives_another_may_send(b: GraphBuilder) -> None:
    first = b.all_reduce(b.call(ATEN.exp.default, b.input("x", (4, 4))), group="tp")
    gm, _ = lower(b, b.all_gather(b.all_reduce(first, "max", group="tp"), group="tp"))
    assert calls(gm) == ["exp", "shm_one_shot_all_reduce_", "shm_one_shot_all_reduce_", "shm_all_gather"]


def test_large_sums_take_two_shots() -> None:
    b = GraphBuilder({"tp": range(4)})
    gm, _ = lower(b, b.all_reduce(b.input("x", (1 << 16,)), group="tp"), verify="full")
    assert "shm_two_shot_all_reduce" in calls(gm)


def test_the_library_works_in_place_where_no_code_is_generated(b: GraphBuilder) -> None:
    sent = b.call(ATEN.exp.default, b.input("x", (4,)))
    gm, (verdict,) = lower(b, b.all_reduce(sent, group="tp"), found=CapabilityTable(), model=EAGER)
    assert calls(gm) == ["exp", "all_reduce_", "wait_tensor"]
    assert str(verdict) == "lowered to library, in place"


def test_where_code_is_generated_that_is_left_to_inductor(b: GraphBuilder) -> None:
    sent = b.call(ATEN.exp.default, b.input("x", (4,)))
    gm, (verdict,) = lower(b, b.all_reduce(sent, group="tp"), found=table_of({"dp": one_host(2)}))
    assert calls(gm) == ["exp", "all_reduce", "wait_tensor"]
    assert verdict.code == "not-probed"


def test_where_nothing_is_known_nothing_is_said(b: GraphBuilder) -> None:
    _, (verdict,) = lower(b, b.all_reduce(b.input("x", (4,)), group="tp"), found=CapabilityTable())
    assert verdict.code == "no-pass"


def test_why_a_form_was_kept_counts_less_than_why_nothing_was_merged(b: GraphBuilder) -> None:
    value = b.all_reduce(b.input("x", (4,)), group="tp")
    found = table_of({"dp": one_host(2)})
    _, (verdict,) = lower(b, value, found=found, passes="bucket-all-reduce,lower-collectives")
    assert verdict.code == "no-partner"


def test_in_place_can_be_switched_off(b: GraphBuilder) -> None:
    sent = b.call(ATEN.exp.default, b.input("x", (4,)))
    gm, _ = lower(b, b.all_reduce(sent, group="tp"), found=CapabilityTable(), model=EAGER, passes=NOT_IN_PLACE)
    assert calls(gm) == ["exp", "all_reduce", "wait_tensor"]


NOT_IN_PLACE = "lower-collectives{in-place=false}"


@pytest.mark.parametrize(
    ("reduce_op", "dtype"), [("sum", torch.complex64), ("bor", torch.float32), ("avg", torch.int32)]
)
def test_what_the_kernels_lack_is_left_to_the_library_in_words(
    b: GraphBuilder, reduce_op: str, dtype: torch.dtype
) -> None:
    _, (verdict,) = lower(b, b.all_reduce(b.input("x", (4,), dtype), reduce_op, group="tp"), verify="structural")
    assert verdict.code == "other-form-lacking"
    assert f"the kernels have no {reduce_op}" in verdict.detail


def test_broadcasts_have_no_other_form(b: GraphBuilder) -> None:
    started = b.call(C10D.broadcast.default, b.input("x", (4,)), 0, "tp")
    _, (verdict,) = lower(b, b.call(C10D.wait_tensor.default, started))
    assert verdict.code == "no-other-form"


def test_what_has_its_form_keeps_it(b: GraphBuilder) -> None:
    gm, _ = lower(b, b.all_reduce(b.input("x", (4,)), group="tp"), passes=f"lower-collectives,{NOT_IN_PLACE}")
    assert calls(gm) == ["shm_one_shot_all_reduce"]


def test_bitwise_forbids_another_order_of_sums() -> None:
    b = GraphBuilder({"tp": range(4)})
    x = b.input("x", (4,))
    _, verdicts = lower(b, b.all_reduce(x, group="tp"), b.all_reduce(x, "max", group="tp"), bitwise=True)
    assert [verdict.code for verdict in verdicts] == ["rounding", ""]


def test_a_size_that_is_not_known_is_chosen_for_when_it_runs(b: GraphBuilder) -> None:
    rows = b.symbol("rows", 8)
    x = b.call(ATEN.exp.default, b.input("x", (rows, 4)))
    gm, verdicts = lower(b, b.all_reduce(x, group="tp"), b.all_gather(x, group="tp"))
    assert calls(gm) == ["exp", "shm_all_reduce", "shm_all_gather"]
    assert verdicts[0].partner == "one-shot or two-shot by size"


def test_ranks_that_know_other_hints_choose_alike() -> None:
    chosen = []
    for hint in (2, 1 << 24):
        b = GraphBuilder({"tp": range(4)})
        rows = b.symbol("rows", hint)
        found, fast = one_host(4), CostModel(latency_us=100.0, bandwidth_gbps=400.0)
        gm, _ = lower(b, b.all_reduce(b.input("x", (rows, 4)), group="tp"), found=found, model=fast, verify="full")
        chosen.append(calls(gm))
    assert chosen[0] == chosen[1]


def test_two_hosts_get_the_hierarchical_form() -> None:
    b = GraphBuilder({"all": range(4)})
    x = b.input("x", (1 << 14, 16))
    scattered = b.call(C10D.wait_tensor.default, b.call(C10D.reduce_scatter_tensor.default, x, "sum", 4, "all"))
    outputs = b.all_reduce(x, group="all"), b.all_gather(x, group="all"), scattered
    gm, verdicts = lower(b, *outputs, found=two_hosts(4), verify="full")
    assert {verdict.partner for verdict in verdicts} == {"hierarchical"}
    # What sends more than it receives comes early.
    assert [name for name in calls(gm) if "hier" in name] == [
        "hierarchical_reduce_scatter",
        "hierarchical_all_reduce",
        "hierarchical_all_gather",
    ]


def test_ranks_with_other_forms_cannot_meet() -> None:
    both = []
    for found in (one_host(2), CapabilityTable()):
        b = GraphBuilder({"tp": range(2)})
        gm, _ = lower(b, b.all_reduce(b.input("x", (4,)), group="tp"), found=found)
        both.append(launches_of(gm.graph)[0])
    assert not both[0].matches(both[1])
