"""One step looks different before inductor's post-grad passes, behind them and reinplaced: each form is fused."""

from __future__ import annotations

import copy
import importlib
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from counterpoint.capture.compiled import capture_compiled
from counterpoint.capture.fully_shard import fully_shard
from counterpoint.capture.graph import CapturedGraph
from counterpoint.capture.replicate import replicate
from counterpoint.capture.world import World, fake_world
from counterpoint.ir.build import collectives_in
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.passes.report import PassStatus

C10D = torch.ops._c10d_functional
LAYERS, X = 8, torch.ones(4, 16)
PARAMETERS = 2 * LAYERS

pytestmark = [
    # All are raised by torch while it compiles, about code of its own.
    pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


class Deep(nn.Module):
    """Sixteen parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def wrapped(how: str, world: World, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    if how == "fully_shard":
        return fully_shard(Deep(), mesh=world.mesh())
    if how == "replicate":
        return replicate(Deep())
    monkeypatch.setattr(torch._dynamo.config, "optimize_ddp", "python_reducer")
    model = DistributedDataParallel(Deep())
    monkeypatch.setattr(torch._inductor.config, "_fuse_ddp_communication", False)
    return model


def reinplaced(graphs: list[CapturedGraph]) -> list[CapturedGraph]:
    """What inductor does last of all."""
    for graph in graphs:
        importlib.import_module("torch._inductor.fx_passes.reinplace").reinplace_inplaceable_ops_core(graph.gm.graph)
        graph.gm.recompile()
    return graphs


def run(graph: CapturedGraph, passes: str) -> list[Any]:
    """The targets of the collectives that are left; a copy of the graph is rewritten."""
    gm = copy.deepcopy(graph.gm)
    options = CompileOptions(verify="full", on_error="raise")
    report = run_pipeline(gm, Pipeline.parse(passes), options=options, groups=graph.groups)
    assert all(record.status is PassStatus.DONE for record in report.passes)
    return [node.target for node in collectives_in(gm.graph)]


def check_fused(how: str, graphs: list[CapturedGraph]) -> Counter[Any]:
    """Few collectives are left; which ones there were."""
    found = Counter(node.target for graph in graphs for node in collectives_in(graph.gm.graph))
    if how == "fully_shard":
        passes, most = ["bucket-all-gather{cap-mb=25},bucket-reduce-scatter{cap-mb=25}"], 3
        assert sum(found.values()) >= 2 * PARAMETERS
    else:
        passes, most = ["fuse-ddp{cap-mb=25}", "fuse-ddp{method=coalesced}", "bucket-all-reduce{cap-mb=25}"], 1
        assert sum(found.values()) == PARAMETERS
    for text in passes:
        assert sum(len(run(graph, text)) for graph in graphs) <= most, text
    return found


@pytest.mark.parametrize("how", ["ddp", "replicate", "fully_shard"])
def test_behind_autograd(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_world(8) as world:
        check_fused(how, capture_compiled(wrapped(how, world, monkeypatch), (X,)))


@pytest.mark.parametrize("how", ["ddp", "replicate", "fully_shard"])
def test_behind_inductors_passes_and_reinplaced(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_world(8) as world:
        graphs = capture_compiled(wrapped(how, world, monkeypatch), (X,), stage="post_grad")
    check_fused(how, graphs)
    found = check_fused(how, reinplaced(graphs))
    if how == "ddp":
        assert found[C10D.all_reduce_.default] > 0
