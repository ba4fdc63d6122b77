"""The cost model of a compile: made of options and measured links, part of what identifies compiled code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoint.cost.measured import MeasuredTable
from counterpoint.cost.presets import topology
from counterpoint.errors import OptionError
from counterpoint.inductor.plan import Plan, make_plan
from counterpoint.inductor.request import read_request
from counterpoint.ir.ops import Kind

TOML = """
[[levels]]
name = "network"
latency_us = 10
bandwidth_gbps = {}
"""


def plan(**options: Any) -> Plan:
    return make_plan(read_request({"codegen": "eager", **options}, None), [torch.ones(1)])


def test_the_topology_is_in_force_and_told() -> None:
    made = plan(topology="h200x8-ib400")
    assert made.cost_model.topology == topology("h200x8-ib400")
    assert made.in_force["topology"] == topology("h200x8-ib400").text
    assert "topology" not in plan().in_force


def test_graphs_that_are_not_generated_do_not_fuse() -> None:
    assert not plan().cost_model.fuses


def test_another_topology_is_another_identity() -> None:
    found = {plan().identity, plan(topology="h200x8-ib400").identity, plan(topology="h100x8-ib400").identity}
    assert len(found) == 3


def test_a_file_counts_by_its_content(tmp_path: Path) -> None:
    place, table = tmp_path / "place.toml", tmp_path / "table.json"
    place.write_text(TOML.format(100))
    MeasuredTable({(Kind.ALL_REDUCE, (0, 1)): ((1.0, 2.0),)}).save(table)

    def identity() -> str | None:
        return plan(topology=str(place), cost_table=str(table)).identity

    first = identity()
    assert first == identity()
    place.write_text(TOML.format(200))
    second = identity()
    MeasuredTable({(Kind.ALL_REDUCE, (0, 1)): ((1.0, 3.0),)}).save(table)
    assert len({first, second, identity()}) == 3


@pytest.mark.parametrize("option", ["topology", "cost_table"])
def test_a_name_that_means_nothing_is_refused_before_anything_is_compiled(option: str) -> None:
    with pytest.raises(OptionError):
        plan(**{option: "h200x8-ib40"})
