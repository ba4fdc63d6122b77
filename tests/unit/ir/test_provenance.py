"""The ledger points at the user's own code, not at torch's or ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.fx import Graph

import counterpoint
from counterpoint.ir.provenance import module_of, source_of

TORCH = Path(torch.__file__).parent / "nn" / "modules" / "linear.py"
OURS = Path(counterpoint.__file__).parent / "capture" / "replicate.py"
EXAMPLE = Path(counterpoint.__file__).parent / "capture" / "example_models.py"


def trace(*frames: tuple[str, int, str]) -> str:
    return "".join(f'  File "{file}", line {line}, in {function}\n    some code\n' for file, line, function in frames)


MINE = ("/home/me/train.py", 12, "forward")
LIBRARY = ("/venv/lib/python3.11/site-packages/transformers/llama.py", 7, "attend")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([MINE, (str(TORCH), 3, "forward"), (str(OURS), 4, "hook")], "/home/me/train.py:12 in forward"),
        ([MINE, ("/other/site-packages/torch/nn/linear.py", 3, "f")], "/home/me/train.py:12 in forward"),
        ([("/home/me/train.py", 1, "main"), MINE], "/home/me/train.py:12 in forward"),
        ([MINE, LIBRARY], "/home/me/train.py:12 in forward"),
        ([LIBRARY, (str(TORCH), 3, "forward")], f"{LIBRARY[0]}:7 in attend"),
        ([("<eval_with_key>.1", 5, "forward")], ""),
        ([(str(EXAMPLE), 9, "forward"), (str(OURS), 4, "hook")], f"{EXAMPLE}:9 in forward"),
    ],
)
def test_the_innermost_frame_of_the_users_code(frames: list[tuple[str, int, str]], expected: str) -> None:
    node = Graph().placeholder("x")
    node.meta["stack_trace"] = trace(*frames)
    assert source_of(node) == expected


def test_a_node_without_trace_takes_that_of_a_neighbour() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.ops.aten.neg.default, (x,))
    x.meta["stack_trace"] = trace(MINE)
    assert source_of(y) == "/home/me/train.py:12 in forward"
    assert source_of(graph.output(1)) == ""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("L['self'].layers[0].mlp", "layers.0.mlp"),
        ("L['self']._modules['layers']._modules['1']", "layers.1"),
        ("L['self'].layers.0", "layers.0"),
        ("self.head", "head"),
        ("L__self___layers_0", "layers_0"),
        ("layers.3.attention", "layers.3.attention"),
        ("selfish.head", "selfish.head"),
        ("L['self']._counterpoint.unit.buffers[1][0].output", "output"),
        ("L['self']", ""),
    ],
)
def test_module_paths_start_below_the_root(path: str, expected: str) -> None:
    node = Graph().placeholder("x")
    node.meta["nn_module_stack"] = {"root": ("L['self']", "Model"), "leaf": (path, "Layer")}
    assert module_of(node) == expected


def test_backward_nodes_know_the_module_of_their_forward() -> None:
    node = Graph().placeholder("x")
    node.meta["fwd_nn_module_stack"] = {"leaf": ("L['self'].head", "Linear")}
    assert module_of(node) == "head"
