"""`counterpoint explain` tells what became of every collective; its JSON and its exit code can be relied on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from counterpoint.capture.file import save_graph
from counterpoint.capture.graph import CapturedGraph
from counterpoint.cli import main
from counterpoint.ir.build import GraphBuilder
from counterpoint.passes.pipeline import DEFAULT_PIPELINE, INFORMED_PIPELINE
from tests.support.timelines import PASSES, gradients


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_graph(tmp_path / "step.graph", gradients(odd=True))
    return tmp_path / "step.graph"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["explain", *map(str, arguments)], catch_exceptions=False)


def test_verdicts_reasons_what_to_change_and_times(saved: Path) -> None:
    result = run(saved, "--passes", PASSES)
    assert result.exit_code == 0
    assert f"{saved}: rank 0 of 8, h100x8-ib400\npasses: bucket-all-reduce" in result.stdout
    assert "3 all_reduce" in result.stdout
    assert "bucketed into all_reduce\n" in result.stdout
    assert "left-alone: no-partner" in result.stdout
    assert "what to change\nno-partner (1): no other collective has the same kind" in result.stdout
    assert "merge over element types with multi-dtype" in result.stdout
    assert "lower bound" in result.stdout
    assert "\x1b" not in result.stdout
    assert result.stderr == ""


def test_the_passes_are_those_of_a_compile_and_an_assumed_cluster_chooses_none(saved: Path) -> None:
    assert f"passes: {DEFAULT_PIPELINE}\n" in run(saved).stdout
    assert f"passes: {INFORMED_PIPELINE}\n" in run(saved, "--topology", "cpu-1g").stdout


def test_the_node_in_the_way_is_told_with_the_users_line(tmp_path: Path) -> None:
    builder = GraphBuilder(groups={"dp": range(8)})
    x = builder.input("x", (64, 64))
    first = builder.all_reduce(builder.call(torch.ops.aten.mm.default, x, x), "sum", "dp")
    second = builder.all_reduce(builder.call(torch.ops.aten.mm.default, first, x), "sum", "dp")
    gm = builder.finish(first, second)
    for number, node in enumerate(gm.graph.nodes):
        node.meta["stack_trace"] = f'  File "/home/me/model.py", line {10 + number}, in forward\n    y = f(x)\n'
    captured = CapturedGraph(gm, name="chain", role="step", world_size=8, groups=dict(builder.groups))
    save_graph(tmp_path / "chain.graph", captured)
    html = tmp_path / "page.html"
    told = run(tmp_path / "chain.graph", "--passes", PASSES, "--html", html).stdout
    assert "step/all_reduce#1: in the way is all_reduce_default, /home/me/model.py:12 in forward" in told
    assert "all_reduce_default, /home/me/model.py:12 in forward" in html.read_text()


def test_every_collective_can_be_listed(saved: Path) -> None:
    listed = run(saved, "--passes", PASSES, "--every").stdout
    assert all(f"step/all_reduce#{number} " in listed for number in range(4))


def test_json_is_all_of_standard_output_and_its_fields_are_these(saved: Path) -> None:
    found = json.loads(run(saved, "--passes", PASSES, "--json", "--topology", "cpu-1g").stdout)
    assert set(found) == {"schema", "target", "world_size", "rank", "topology", "options", "totals", "graphs"}
    assert (found["schema"], found["world_size"], found["topology"]) == (1, 8, "cpu-1g")
    assert set(found["totals"]) == {
        *("collectives_before", "collectives", "step_before_us", "compute_before_us", "exposed_before_us"),
        *("peak_before_bytes", "step_us", "compute_us", "exposed_us", "peak_bytes", "lower_bound_us", "bytes"),
        *("fused", "bucketed", "pipelined", "lowered", "hidden", "deduplicated", "left_alone"),
    }
    (graph,) = found["graphs"]
    assert set(graph) == {"name", "role", "report", "before", "after"}
    assert set(graph["after"]) == {
        *("step_us", "compute_us", "exposed_us", "peak_bytes", "lower_bound_us", "notes"),
    }
    exposed = [entry["exposed_after_us"] for entry in graph["report"]["ledger"]["collectives"]]
    assert sum(exposed) == pytest.approx(found["totals"]["exposed_us"])
    assert found["totals"]["bucketed"] == 3
    assert found["totals"]["left_alone"] == 1


def test_page_and_trace_are_written(saved: Path, tmp_path: Path) -> None:
    result = run(saved, "--passes", PASSES, "--html", tmp_path / "deep/page.html", "--trace", tmp_path / "trace.json")
    assert result.exit_code == 0
    assert "<canvas" in (tmp_path / "deep/page.html").read_text()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert result.stderr.count("wrote ") == 2


@pytest.mark.parametrize(("condition", "code"), [("left_alone > 0", 1), ("left_alone > 1 or collectives > 2", 0)])
def test_a_condition_decides_the_exit_code(saved: Path, condition: str, code: int) -> None:
    result = run(saved, "--passes", PASSES, "--fail-if", condition)
    assert result.exit_code == code
    assert (f"the condition holds: {condition}" in result.stderr) == bool(code)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fail-if", "exposed_us >"], "cannot be read"),
        (["--fail-if", "exposed > 1"], "did you mean 'exposed_us'"),
        (["--topology", "h100x8-ib40"], "did you mean 'h100x8-ib400'"),
        (["--passes", "bucket-all-redcue"], "did you mean 'bucket-all-reduce'"),
        (["--world-size", "4"], "cannot be told for 4"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(saved: Path, arguments: list[str], message: str) -> None:
    result = run(saved, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_place_that_cannot_be_written_is_an_error(saved: Path) -> None:
    result = run(saved, "--html", saved / "below-a-file.html")
    assert result.exit_code == 1
    assert "the file cannot be written" in result.stderr


def test_a_graph_without_collectives_says_so(tmp_path: Path) -> None:
    save_graph(tmp_path / "none.graph", gradients(layers=0))
    result = run(tmp_path / "none.graph")
    assert result.exit_code == 0
    assert "no collectives" in result.stdout
