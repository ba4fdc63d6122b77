"""Times of operators brought in line with what graphs take as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.fx import GraphModule

from counterpoint.cost.fit import Whole, compute_us, fitted
from counterpoint.cost.measured import MeasuredTable, operator_key
from counterpoint.cost.model import CostModel
from counterpoint.errors import OptionError
from counterpoint.ir.build import GraphBuilder

ATEN = torch.ops.aten


def graph(products: int, sums: int, size: int = 64) -> GraphModule:
    b = GraphBuilder()
    x = b.input("x", (size, size))
    for _ in range(products):
        x = b.call(ATEN.mm.default, x, x)
    for _ in range(sums):
        x = b.call(ATEN.cumsum.default, x, 0)
    return b.finish(x)


def measured(us: float, *sizes: int) -> MeasuredTable:
    nodes = [node for size in sizes or (64,) for node in graph(1, 0, size).graph.nodes]
    return MeasuredTable(operators={operator_key(node) or "": us for node in nodes if node.target is ATEN.mm.default})


def whole(gm: GraphModule, us: float) -> Whole:
    return Whole(tuple(gm.graph.nodes), us)


def test_graphs_take_what_they_were_measured_to_take() -> None:
    table = measured(100.0, 64, 32)
    forward, backward = graph(2, 3), graph(5, 2, 32)
    model = CostModel(table=table)
    wanted = [compute_us(gm.graph.nodes, model) * factor for gm, factor in ((forward, 0.8), (backward, 0.9))]
    found = fitted(table, [whole(forward, wanted[0]), whole(backward, wanted[1])], model)
    after = CostModel(table=found)
    assert [compute_us(gm.graph.nodes, after) for gm in (forward, backward)] == pytest.approx(wanted, rel=0.01)


def test_what_agrees_already_and_what_is_far_out_change_nothing() -> None:
    table = measured(100.0)
    gm, model = graph(2, 2), CostModel(table=table)
    agreeing = fitted(table, [whole(gm, compute_us(gm.graph.nodes, model))], model)
    assert agreeing.operators == pytest.approx(dict(table.operators))
    assert agreeing.estimate_scale == pytest.approx(1.0)
    assert fitted(table, [], model) == table
    assert fitted(table, [whole(gm, 1e9), whole(gm, 0.0)], model) == table


def test_a_scaled_table_is_saved_read_and_told_from_a_plain_one(tmp_path) -> None:
    table = replace(measured(100.0), estimate_scale=1.25)
    table.save(tmp_path / "table.json")
    assert MeasuredTable.load(tmp_path / "table.json") == table
    assert table.identity != measured(100.0).identity
    assert MeasuredTable().merged(table).estimate_scale == table.merged(MeasuredTable()).estimate_scale == 1.25
    with pytest.raises(OptionError, match="damaged"):
        MeasuredTable.from_data({**table.to_data(), "estimate_scale": 0})
