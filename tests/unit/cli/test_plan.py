"""`counterpoint plan` predicts steps, tells what would pay, and sweeps; its JSON can be relied on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from counterpoint.capture.file import save_graph
from counterpoint.capture.graph import CapturedGraph
from counterpoint.cli import main
from counterpoint.cli.plan.outcomes import Scenario, outcome, quicker, scenarios, stronger, wider, with_link
from counterpoint.cli.plan.sweep import Sweep
from counterpoint.cost.model import CostModel
from counterpoint.cost.presets import PRESETS
from counterpoint.errors import OptionError
from counterpoint.ir.text import print_graph
from counterpoint.options import CompileOptions
from tests.support.timelines import PASSES, gradients

H100 = PRESETS["h100x8-ib400"]
OUTCOME = {
    *("label", "passes", "collectives", "step_us", "exposed_us", "compute_us", "lower_bound_us", "peak_bytes"),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_graph(tmp_path / "step.graph", gradients())
    return tmp_path / "step.graph"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, arguments)], catch_exceptions=False)


def predicted(topology: object = H100, passes: str = PASSES) -> float:
    model = CostModel(topology=topology)  # type: ignore[arg-type]
    return outcome(Scenario(label="", passes=passes), [gradients(size=512)], CompileOptions(), model).step_us


def test_scenarios_what_pays_and_a_sweep_are_printed(saved: Path) -> None:
    result = run(saved, "--sweep", "link=100..400", "--topology", "cpu-10g", "--passes", PASSES)
    assert result.exit_code == 0
    for part in ("as written", "bucketing only", "full", "yours", "The knob that pays most is", "Step by link"):
        assert part in result.stdout
    assert "The shortest step is" in result.stdout
    assert "\x1b" not in result.stdout


def test_json_fields_are_these(saved: Path) -> None:
    result = run(saved, "--json", "--sweep", "bucket-mb=1,8")
    found = json.loads(result.stdout)
    assert set(found) == {"schema", "target", "world_size", "topology", "scenarios", "best", "knobs", "sweeps"}
    assert [set(one) for one in found["scenarios"]] == [OUTCOME] * 3
    assert all(set(one) == {"label", "step_us", "gain"} for one in found["knobs"])
    (sweep,) = found["sweeps"]
    assert (sweep["knob"], sweep["unit"]) == ("bucket-mb", "MB")
    assert [point["value"] for point in sweep["points"]] == [1, 8]
    assert [set(one) for one in sweep["points"][0]["scenarios"]] == [OUTCOME] * 3


def test_bucketing_is_predicted_to_shorten_a_step_of_small_gradients(saved: Path) -> None:
    written, bucketed, _ = json.loads(run(saved, "--json").stdout)["scenarios"]
    assert (written["collectives"], bucketed["collectives"]) == (4, 1)
    assert bucketed["step_us"] < written["step_us"]
    assert written["lower_bound_us"] <= written["step_us"]


def test_predicting_leaves_the_graph_as_it_is() -> None:
    captured: CapturedGraph = gradients()
    before = print_graph(captured.gm)
    for scenario in scenarios(CompileOptions()):
        outcome(scenario, [captured], CompileOptions(), CostModel(topology=H100))
    assert print_graph(captured.gm) == before


@pytest.mark.parametrize(
    "changed", [wider(H100, 2), quicker(H100, 2), stronger(H100, 2), stronger(PRESETS["cpu-1g"], 2)]
)
def test_a_better_cluster_is_never_slower(changed: object) -> None:
    base = PRESETS["cpu-1g"] if changed.name == "cpu-1g" else H100  # type: ignore[attr-defined]
    assert predicted(changed) < predicted(base)


def test_a_link_is_set_to_what_is_asked_for() -> None:
    changed = with_link(H100, 123.0)
    assert changed.levels[-1].link.bandwidth_gbps == pytest.approx(123.0)
    assert changed.levels[:-1] == H100.levels[:-1]
    assert replace(changed, levels=H100.levels) == H100


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("link=100..800", (100, 200, 400, 800)),
        ("link=100..500", (100, 200, 400, 500)),
        ("bucket-mb=1,25,5", (1, 5, 25)),
        ("world-size=8..32", (8, 16, 32)),
    ],
)
def test_ranges_go_in_steps_of_two(text: str, values: tuple[float, ...]) -> None:
    assert Sweep.parse(text).values == values


def test_a_sweep_tells_of_what_it_changes(saved: Path) -> None:
    """The whole pipeline chooses its own buckets, so their size says nothing about it."""
    told = run(saved, "--sweep", "bucket-mb=0.001,8").stdout
    assert "MB with 'bucketing only'" in told.partition("Step by bucket-mb")[2]


def test_a_wide_range_has_few_points() -> None:
    values = Sweep.parse("link=1..10000").values
    assert len(values) == 8
    assert (values[0], values[-1]) == (1, 10000)


@pytest.mark.parametrize(
    "text",
    ["link", "lnik=1..2", "link=", "link=5..5", "link=8..2", "link=0..5", "link=a..b", "link=-1,2", "link=1..inf"],
)
def test_what_is_no_sweep_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        Sweep.parse(text)


@pytest.mark.parametrize("name", ["plot.svg", "plot.png"])
def test_a_plot_is_drawn(saved: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    assert run(saved, "--sweep", "link=100,400", "--plot", tmp_path / "new" / name).exit_code == 0
    assert (tmp_path / "new" / name).stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--plot", "x.svg"], 2, "there is nothing to plot"),
        (["--sweep", "link=1,2", "--plot", "x.txt"], 1, "end the name with .svg"),
        (["--sweep", "lnk=1,2"], 2, "did you mean 'link'"),
        (["--sweep", "world-size=8,16"], 2, "file.py:function"),
    ],
)
def test_what_cannot_be_planned_is_named(saved: Path, arguments: list[str], code: int, message: str) -> None:
    result = run(saved, *arguments)
    assert result.exit_code == code
    assert message in result.stderr
