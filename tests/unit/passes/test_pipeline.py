"""A pipeline is checked before it runs; what fails is undone to the letter, and every collective has its verdict."""

from __future__ import annotations

import json

import pytest
import torch

from counterpoint.errors import ContractError, OptionError, PassError, VerifyError
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.text import print_graph
from counterpoint.options import CompileOptions
from counterpoint.passes.ledger import VerdictKind
from counterpoint.passes.pipeline import DEFAULT_PIPELINE, INFORMED_PIPELINE, Pipeline, run_pipeline
from counterpoint.passes.report import PassStatus, PipelineReport
from tests.support.passes import REGISTRY

Made = tuple[torch.fx.GraphModule, GraphBuilder]


def gradients() -> Made:
    builder = GraphBuilder(groups={"dp": range(2)})
    named = [builder.input(name, (4,)) for name in ("a", "b")]
    halves = [builder.call(torch.ops.aten.div.Tensor, x, 2) for x in named]
    return builder.finish(*(builder.all_reduce(half, group="dp") for half in halves)), builder


def run(text: str, made: Made | None = None, given: frozenset[str] = frozenset(), **options: str) -> PipelineReport:
    gm, builder = made or gradients()
    return run_pipeline(
        gm,
        Pipeline.parse(text, REGISTRY),
        options=CompileOptions.from_mapping(options),
        groups=builder.groups,
        name="backward",
        given=given,
    )


def everything(made: Made) -> str:
    gm, _ = made
    return print_graph(gm, locations=True, notes=True) + str([n.name for n in gm.graph.nodes]) + str(list(gm.buffers()))


@pytest.mark.parametrize(
    "text",
    ["", "verify-graph", 'print-graph{label="a, b"},verify-graph', "drop-collective{lie=true},print-graph{label=x}"],
)
def test_text_form_round_trips(text: str) -> None:
    assert Pipeline.parse(text, REGISTRY).text == text


def test_blanks_around_passes_do_not_matter() -> None:
    assert Pipeline.parse("  verify-graph , print-graph{ label=x }\n").text == "verify-graph,print-graph{label=x}"
    assert Pipeline.parse("verify-graph{}").text == "verify-graph"


@pytest.mark.parametrize("text", ["verify-graph,", ",", "verify-graph print-graph", "verify-graph{", "print-graph{a}}"])
def test_a_text_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises((PassError, OptionError), match="cannot read"):
        Pipeline.parse(text)


def test_options_name_the_pipeline_and_none_means_the_default() -> None:
    assert Pipeline.of(CompileOptions(passes="verify-graph")).text == "verify-graph"
    assert Pipeline.of(CompileOptions()).text == DEFAULT_PIPELINE
    assert len(Pipeline.of(CompileOptions(passes=""))) == 0


@pytest.mark.parametrize("option", ["topology", "cost_table"])
def test_buckets_and_order_are_decided_together_where_costs_are_known(option: str) -> None:
    known = CompileOptions(**{option: "cpu-10g"})
    assert Pipeline.of(known).text == INFORMED_PIPELINE
    assert "schedule-overlap" in INFORMED_PIPELINE
    assert "schedule-overlap" not in DEFAULT_PIPELINE
    Pipeline.of(known).check()
    assert Pipeline.of(CompileOptions(passes="verify-graph", **{option: "cpu-10g"})).text == "verify-graph"


def test_without_passes_all_is_left_alone() -> None:
    report = run("")
    assert {kind: total.count for kind, total in report.ledger.totals().items()} == {VerdictKind.LEFT_ALONE: 2}
    assert {entry.verdict.code for entry in report.ledger} == {"no-pass"}
    assert report.problems == ()


def test_contracts_are_checked_before_anything_runs() -> None:
    made = gradients()
    before = everything(made)
    with pytest.raises(ContractError, match="hide-everything requires 'order'"):
        run("hide-everything", made)
    assert everything(made) == before
    assert run("hide-everything", given=frozenset({"order"})).problems == ()


def test_a_crashing_pass_is_undone_entirely_and_the_others_go_on() -> None:
    made = gradients()
    run("", made)
    before = everything(made)
    report = run("crash-halfway,verify-graph", made)
    assert everything(made) == before
    crashed, verified = report.passes
    assert (crashed.status, verified.status) == (PassStatus.FAILED, PassStatus.DONE)
    assert "ZeroDivisionError: halfway [pass crash-halfway]" in crashed.problem
    assert (crashed.collectives_before, crashed.collectives_after) == (2, 2)
    assert {(e.verdict.code, e.verdict.by) for e in report.ledger} == {("pass-failed", "crash-halfway")}
    assert len(report.problems) == 1


@pytest.mark.parametrize("level", ["off", "structural", "full", "paranoid"])
def test_a_right_pass_stands_at_every_level(level: str) -> None:
    gm, _ = made = gradients()
    report = run("merge-all-reduces", made, verify=level)
    (record,) = report.passes
    assert (record.status, report.notes) == (PassStatus.DONE, ())
    assert (record.collectives_before, record.collectives_after) == (2, 1)
    assert record.edits == {"inserted": 5, "erased": 4, "moved": 0, "replaced": 2, "arguments": 0}
    assert record.operators["_c10d_functional.all_reduce_coalesced.default"] == 1
    assert record.operators["_c10d_functional.all_reduce.default"] == -2
    assert [str(entry.verdict) for entry in report.ledger] == ["bucketed into bucket 0"] * 2
    assert "all_reduce_coalesced" in gm.code


def test_passes_build_on_each_other_and_the_ledger_follows() -> None:
    builder = GraphBuilder(groups={"dp": range(2)})
    x, y = builder.input("x", (4,)), builder.input("y", (2,))
    gm = builder.finish(*(builder.all_reduce(tensor, group="dp") for tensor in (x, y, x)))
    report = run("share-duplicates,merge-all-reduces,crash-halfway,hide-everything", (gm, builder), verify="paranoid")
    assert [record.status.value for record in report.passes] == ["done", "done", "failed", "skipped"]
    assert [str(entry.verdict) for entry in report.ledger] == [
        "bucketed into bucket 0",
        "bucketed into bucket 0",
        "deduplicated into all_reduce_default",
    ]
    assert (report.collectives_before, report.collectives_after) == (3, 1)


def test_what_depends_on_a_failed_pass_is_skipped() -> None:
    report = run("crash-halfway,hide-everything")
    assert [record.status for record in report.passes] == [PassStatus.FAILED, PassStatus.SKIPPED]
    assert "requires order" in report.passes[1].problem


def test_a_restored_graph_is_the_same_object_and_can_be_rewritten() -> None:
    gm, _ = made = gradients()
    graph = gm.graph
    run("crash-halfway", made)
    assert gm.graph is graph
    assert run("merge-all-reduces", made, verify="paranoid").problems == ()


def test_on_error_raise_raises_after_undoing() -> None:
    made = gradients()
    run("", made)
    before = everything(made)
    with pytest.raises(PassError, match="halfway") as caught:
        run("crash-halfway", made, on_error="raise")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert everything(made) == before


@pytest.mark.parametrize(
    ("text", "level", "message"),
    [
        ("drop-collective", "off", "nothing does the work of backward/all_reduce#0"),
        ("drop-collective{lie=true}", "full", "not-reduced"),
        ("drop-collective{lie=true}", "paranoid", "not-reduced"),
        ("change-reduce-op", "full", "reduce-op-changed"),
        ("add-collective", "off", "does the work of no collective of the input graph"),
        ("add-collective", "structural", "never-waited"),
        ("speak-twice", "off", "two verdicts, hidden behind this and hidden behind that"),
    ],
)
def test_wrong_passes_are_caught_and_undone(text: str, level: str, message: str) -> None:
    made = gradients()
    run("", made)
    before = everything(made)
    report = run(text, made, verify=level)
    assert report.passes[0].status is PassStatus.FAILED
    assert message in report.passes[0].problem
    assert everything(made) == before
    assert all(entry.verdict.code == "pass-failed" for entry in report.ledger)


def test_paranoid_compares_values_where_the_verifier_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    from counterpoint.ir import verify

    monkeypatch.setattr(verify, "check", lambda *_, **__: ())
    report = run("change-reduce-op", verify="paranoid")
    assert "output 0 on rank 0" in report.passes[0].problem


def test_an_input_that_cannot_be_read_is_left_as_it_is() -> None:
    made = gradients()
    next(iter(made[0].graph.nodes)).meta.clear()
    report = run("verify-graph", made)
    assert report.passes[0].status is PassStatus.SKIPPED
    assert "no-metadata" in report.input_problem
    assert {entry.verdict.code for entry in report.ledger} == {"invalid-graph"}
    with pytest.raises(VerifyError, match="no-metadata"):
        run("verify-graph", made, on_error="raise")


def test_a_fault_of_the_input_is_noted_and_no_pass_is_blamed() -> None:
    builder = GraphBuilder(groups={"dp": range(2)})
    x = builder.input("x", (4,))
    builder.call(torch.ops._c10d_functional.all_reduce.default, x, "sum", "dp")
    report = run("print-graph", (builder.finish(builder.all_reduce(x, group="dp")), builder), verify="full")
    assert report.passes[0].status is PassStatus.DONE
    assert any("never-waited" in note for note in report.notes)


def test_time_and_counts_are_recorded() -> None:
    (record,) = run("verify-graph").passes
    assert record.seconds > 0
    assert (record.collectives_before, record.collectives_after, dict(record.operators)) == (2, 2, {})


def test_the_report_survives_json() -> None:
    report = run("crash-halfway,verify-graph", verify="full")
    assert PipelineReport.from_data(json.loads(json.dumps(report.to_data()))) == report


def test_two_runs_on_equal_graphs_give_equal_reports_but_for_the_clock() -> None:
    def timeless(data: dict[str, object]) -> str:
        return json.dumps({k: v for k, v in data.items() if k != "seconds"} | {"passes": []})

    assert timeless(run("verify-graph").to_data()) == timeless(run("verify-graph").to_data())


def test_values_of_too_many_ranks_are_not_compared_and_that_is_said() -> None:
    builder = GraphBuilder(groups={"dp": range(64)})
    gm = builder.finish(builder.all_reduce(builder.input("x", (4,)), group="dp"))
    report = run("print-graph", (gm, builder), verify="paranoid")
    assert any("64 ranks are more than" in note for note in report.notes)
