"""`counterpoint opt` runs a pipeline on saved graphs; its exit code and its two streams can be relied on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from counterpoint.capture.file import load_graph, save_graph
from counterpoint.capture.graph import CapturedGraph
from counterpoint.cli import main
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.text import print_graph
from counterpoint.report.ledger_json import reports_from_json
from tests.support.timelines import gradients


def captured(name: str = "tiny") -> CapturedGraph:
    builder = GraphBuilder()
    x, y = builder.input("x", (4, 4)), builder.input("y", (3,))
    gm = builder.finish(builder.all_reduce(x), builder.all_gather(y))
    return CapturedGraph(gm, name=name, role="forward", world_size=2, groups=dict(builder.groups))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.graph"
    save_graph(path, captured())
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


def test_prints_graph_passes_and_ledger(saved: Path) -> None:
    result = run("opt", saved, "--passes", "verify-graph")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert print_graph(captured().gm) in result.stdout
    assert "verify-graph  done" in result.stdout
    assert "forward/all_reduce#0  0 (2 ranks)  sum float32 4x4" in result.stdout
    assert "left-alone            2  100.0 %" in result.stdout
    assert "\x1b" not in result.stdout


def test_the_graph_can_be_left_out(saved: Path) -> None:
    assert "placeholder" not in run("opt", saved, "--no-graph").stdout


def test_json_is_all_of_standard_output_and_reads_back(saved: Path) -> None:
    result = run("opt", saved, "--json")
    (report,) = reports_from_json(result.stdout)
    assert json.loads(result.stdout)["schema"] == 1
    assert [entry.facts.kind for entry in report.ledger] == ["all_reduce", "all_gather"]


def test_the_fields_of_a_report_are_these(saved: Path) -> None:
    found = json.loads(run("opt", saved, "--json", "--passes", "verify-graph").stdout)
    assert set(found) == {"schema", "graphs"}
    (report,) = found["graphs"]
    assert set(report) == {
        *("graph", "pipeline", "options", "passes", "collectives_before", "collectives_after", "seconds"),
        *("input_problem", "notes", "launches", "ledger"),
    }
    assert set(report["passes"][0]) == {
        *("text", "status", "problem", "seconds", "verify_seconds", "edits", "operators"),
        *("collectives_before", "collectives_after", "plan"),
    }
    assert set(report["ledger"]) == {"schema", "collectives"}
    entry = report["ledger"]["collectives"][0]
    assert set(entry) == {
        *("origin", "kind", "operator", "node", "group", "group_size", "reduce_op", "dtypes", "shapes", "nbytes"),
        *("source", "module", "exposed_before_us", "exposed_after_us", "verdict", "history"),
    }
    assert set(entry["verdict"]) == {
        *("kind", "by", "partner", "code", "blocking", "blocking_source", "detail", "hint"),
        *("before_us", "after_us"),
    }


def test_output_is_a_graph_file(saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.graph"
    assert run("opt", saved, "--passes", "verify-graph", "--output", target).exit_code == 0
    assert print_graph(load_graph(target).gm) == print_graph(captured().gm)


def test_a_file_of_several_graphs_gives_several_reports(tmp_path: Path) -> None:
    path = tmp_path / "two.graph"
    save_graph(path, [captured("one"), captured("two")])
    reports = reports_from_json(run("opt", path, "--json").stdout)
    assert [report.graph for report in reports] == ["one/forward", "two/forward"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--passes", "verify-grap"], "did you mean 'verify-graph'"),
        (["--passes", "print-graph{lable=x}"], "did you mean 'label'"),
        (["--passes", "verify-graph,,"], "cannot read"),
        (["--verify", "sometimes"], "'off', 'structural', 'full', 'paranoid'"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(saved: Path, arguments: list[str], message: str) -> None:
    result = run("opt", saved, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.output


def test_a_missing_file_is_a_usage_error_and_a_damaged_one_is_refused(saved: Path, tmp_path: Path) -> None:
    assert run("opt", tmp_path / "none.graph").exit_code == 2
    saved.write_text(saved.read_text()[:-40])
    result = run("opt", saved)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "next step: " in result.stderr
    assert "Traceback" not in result.output


def test_debug_shows_the_traceback(saved: Path) -> None:
    result = CliRunner().invoke(main, ["--debug", "opt", str(saved), "--passes", "nonsense"])
    assert type(result.exception).__name__ == "PassError"


def test_options_come_from_the_environment_too(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOINT_PASSES", "verify-graph")
    (report,) = reports_from_json(run("opt", saved, "--json").stdout)
    assert report.pipeline == "verify-graph"


def test_list_passes_names_each_with_its_options() -> None:
    result = run("opt", "--list-passes")
    assert result.exit_code == 0
    assert "print-graph\n  Writes the graph to standard error" in result.stdout
    assert "    label=" in result.stdout


def test_what_passes_decided_is_written_and_carried_out_again(tmp_path: Path) -> None:
    path, plan = tmp_path / "step.graph", tmp_path / "plan.txt"
    save_graph(path, [gradients()])
    passes = "schedule-overlap{mode=custom}"
    done = CliRunner().invoke(main, ["opt", str(path), "--passes", passes, "--write-plan", str(plan), "--json"])
    assert done.exit_code == 0, done.output
    assert plan.read_text().startswith('plan "step" for ')
    pinned = CliRunner().invoke(
        main, ["opt", str(path), "--passes", f'schedule-overlap{{plan="{plan}"}}', "--write-plan", str(plan), "--json"]
    )
    (first,), (again,) = (reports_from_json(one.stdout) for one in (done, pinned))
    assert first.plan == again.plan
