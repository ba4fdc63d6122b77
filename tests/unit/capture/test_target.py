"""What a command is pointed at: a saved graph, or a function that builds something to capture."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from counterpoint.capture.file import save_graph
from counterpoint.capture.target import load_target
from counterpoint.errors import CounterpointError
from tests.support.timelines import gradients

SOURCE = """
import torch
from torch import nn
from helper import graph

class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
    def forward(self, x):
        for block in self.blocks:
            x = block(x).relu()
        return x

def model():
    return Blocks(), torch.zeros(4, 8)

def step():
    return Blocks(), lambda model, x: model(x).sum(), torch.zeros(4, 8)

def of_world(world):
    return graph(world.size)

def several():
    return [graph(8), graph(8)]

def wrong():
    return 3

def failing():
    raise KeyError("my fault")
"""
HELPER = """
from dataclasses import replace
from tests.support.timelines import gradients

def graph(size):
    return replace(gradients(), world_size=size)
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "script.py").write_text(SOURCE)
    (tmp_path / "helper.py").write_text(HELPER)
    yield f"{tmp_path}/script.py"
    sys.modules.pop("helper", None)


def kinds(target: str, **more: object) -> list[tuple[str, int, list[str]]]:
    """Role, world and collectives of each graph."""
    found = load_target(target, **more)  # type: ignore[arg-type]
    return [
        (graph.role, graph.world_size, [str(n.target) for n in graph.gm.graph.nodes if "c10d" in str(n.target)])
        for graph in found
    ]


def test_a_saved_graph_is_loaded_in_its_own_world(tmp_path: Path) -> None:
    save_graph(tmp_path / "a.graph", gradients())
    assert [graph.world_size for graph in load_target(str(tmp_path / "a.graph"))] == [8]
    assert [graph.world_size for graph in load_target(str(tmp_path / "a.graph"), world_size=8)] == [8]


@pytest.mark.parametrize("more", [{"world_size": 4}, {"parallel": "replicate"}])
def test_a_saved_graph_cannot_become_another(tmp_path: Path, more: dict[str, object]) -> None:
    save_graph(tmp_path / "a.graph", gradients())
    with pytest.raises(CounterpointError, match="function that builds"):
        load_target(str(tmp_path / "a.graph"), **more)  # type: ignore[arg-type]


def test_a_function_may_take_the_world_and_answer_graphs(script: str) -> None:
    assert [graph.world_size for graph in load_target(f"{script}:of_world", world_size=16)] == [16]
    assert len(load_target(f"{script}:several")) == 2
    assert not dist.is_initialized()


# Torch's own warning when it traces an autograd function.
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
def test_a_plain_model_is_wrapped_and_its_graphs_captured(script: str) -> None:
    forward, backward = load_target(f"{script}:model", world_size=4, parallel="fully-shard")
    assert (forward.role, backward.role) == ("forward", "backward")
    assert (forward.world_size, set(forward.groups.values())) == (4, {(0, 1, 2, 3)})


def test_a_train_step_is_one_graph(script: str) -> None:
    ((role, world, collectives),) = kinds(f"{script}:step", parallel="replicate")
    assert (role, world) == ("step", 8)
    assert sum("all_reduce" in name for name in collectives) == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", "the function answered a int"),
        ("failing", "the function failed with KeyError: 'my fault'"),
        ("modle", "has no function 'modle'\n  next step: did you mean 'model'"),
        ("torch", "has no function 'torch'"),
    ],
)
def test_what_cannot_be_captured_is_named(script: str, name: str, message: str) -> None:
    with pytest.raises(CounterpointError) as raised:
        load_target(f"{script}:{name}")
    assert message in str(raised.value)
    assert not dist.is_initialized()


def test_files_that_cannot_be_used_are_named(tmp_path: Path, script: str) -> None:
    with pytest.raises(CounterpointError, match="there is no file"):
        load_target(f"{tmp_path}/none.py:build")
    with pytest.raises(CounterpointError, match="its function is missing"):
        load_target(script)
    (tmp_path / "broken.py").write_text("import nowhere_at_all")
    with pytest.raises(CounterpointError, match=r"importing .* failed with ModuleNotFoundError"):
        load_target(f"{tmp_path}/broken.py:build")


def test_nothing_of_the_file_stays_behind(script: str) -> None:
    path = list(sys.path)
    load_target(f"{script}:several")
    assert sys.path == path
    assert "script" not in sys.modules
