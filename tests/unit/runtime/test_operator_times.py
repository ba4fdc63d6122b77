"""Operators of a graph measured on made-up tensors: the heavy ones, each once; what cannot be measured is told."""

from __future__ import annotations

import torch
from click.testing import CliRunner

from counterpoint.capture.file import save_graph
from counterpoint.capture.graph import CapturedGraph
from counterpoint.cli import main
from counterpoint.cost.measured import MeasuredTable, operator_key
from counterpoint.cost.model import CostModel
from counterpoint.ir.build import GraphBuilder
from counterpoint.runtime.operator_times import measure_operators

ATEN = torch.ops.aten


def step() -> tuple[GraphBuilder, list[torch.fx.Node]]:
    b = GraphBuilder()
    rows = b.symbol("rows", 16)
    x, w = b.input("x", (rows, 8)), b.input("w", (8, 8))
    first = b.call(ATEN.mm.default, x, w)
    second = b.call(ATEN.mm.default, b.call(ATEN.relu.default, first), w)
    other = b.call(ATEN.mm.default, w, b.call(ATEN.t.default, w))
    return b, [first, second, other]


def test_every_distinct_product_is_measured_once_with_sizes_by_their_hints() -> None:
    b, (first, second, other) = step()
    gm = b.finish(second, other)
    heard: list[str] = []
    times = measure_operators(gm.graph.nodes, repeats=1, said=heard.append)
    assert set(times.us) == {operator_key(first), operator_key(other)} == set(heard)
    assert operator_key(first) == operator_key(second)
    assert all(us > 0 for us in times.us.values())
    model = CostModel(table=MeasuredTable(operators=times.us))
    assert model.node_us(second) == times.us[operator_key(first) or ""]


def test_what_cannot_be_run_is_skipped_with_the_reason() -> None:
    b, (_first, second, other) = step()
    other.args = (other.args[0], other.args[0])
    other.kwargs = {"out": 3}
    gm = b.finish(second)
    times = measure_operators([other, *gm.graph.nodes], repeats=1)
    assert len(times.us) == 1
    assert list(times.skipped) == [operator_key(other)]
    assert all("Error" in why for why in times.skipped.values())


def test_the_command_measures_the_operators_of_a_file(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    b, (_, second, other) = step()
    captured = CapturedGraph(
        gm=b.finish(second, other), name="small", role="forward", world_size=2, rank=0, groups=dict(b.groups)
    )
    path, output = tmp_path / "small.graph", tmp_path / "table.json"
    save_graph(path, [captured])
    done = CliRunner().invoke(
        main, ["calibrate", "--graph", str(path), "--codegen", "eager", "--repeats", "1", "--output", str(output)]
    )
    assert done.exit_code == 0, done.output
    assert "2 operators measured" in done.output
    assert " us as a whole, " in done.output
    assert len(MeasuredTable.load(output).operators) == 2
