"""Groups of a graph: found by name, and laid out in text that ranks of one mesh share."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from counterpoint.capture.world import fake_world
from counterpoint.errors import GroupError
from counterpoint.inductor.groups import collectives, layout, live_groups
from counterpoint.ir.build import GraphBuilder


def graph_over(*groups: str) -> tuple[torch.fx.Node, ...]:
    builder = GraphBuilder(groups={name: range(2) for name in groups})
    x = builder.input("x", (4,))
    return collectives(builder.finish(*(builder.all_reduce(x, "sum", name) for name in groups)))


def test_a_live_group_is_found_with_its_ranks() -> None:
    with fake_world(4):
        name = dist.group.WORLD.group_name
        assert dict(live_groups(graph_over(name))) == {name: (0, 1, 2, 3)}


def test_a_graph_without_collectives_needs_no_process_group() -> None:
    assert dict(live_groups(())) == {}


def test_an_unknown_name_is_an_error_that_names_it() -> None:
    with fake_world(2), pytest.raises(GroupError, match="'elsewhere'"):
        live_groups(graph_over("elsewhere"))


def test_no_process_group_is_an_error_that_says_what_to_call() -> None:
    with pytest.raises(GroupError, match="init_process_group"):
        live_groups(graph_over("0"))


def test_ranks_of_one_mesh_share_a_layout() -> None:
    with fake_world(8):
        assert layout({"tp": (0, 1)}) == layout({"tp": (6, 7)})
        assert layout({"dp": (0, 4)}) == layout({"dp": (3, 7)})


def test_other_shapes_names_and_worlds_have_other_layouts() -> None:
    with fake_world(8):
        found = [layout(g) for g in ({"a": (0, 1)}, {"a": (0, 4)}, {"a": (0, 1, 2, 3)}, {"b": (0, 1)}, {})]
        assert len(set(found)) == 5
    with fake_world(4):
        assert layout({"a": (0, 1)}) not in found
