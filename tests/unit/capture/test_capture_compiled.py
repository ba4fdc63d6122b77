"""The graphs of `torch.compile`, captured without running anything."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from counterpoint.capture.compiled import capture_compiled
from counterpoint.capture.example_models import Decoder, DecoderConfig, parallelize_decoder
from counterpoint.capture.fully_shard import fully_shard
from counterpoint.capture.graph import CapturedGraph
from counterpoint.capture.replicate import replicate
from counterpoint.capture.world import fake_world
from counterpoint.errors import CaptureError, GroupError
from counterpoint.ir import ops
from counterpoint.ir.ops import Kind
from counterpoint.ir.text import print_graph
from counterpoint.ir.verify import check


class Net(nn.Module):
    """Two layers; `broken` breaks the graph between them."""

    def __init__(self, *, broken: bool = False, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.broken = broken

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        if self.broken:
            torch._dynamo.graph_break()
        result: Tensor = self.norm(self.second(x))
        return result


class Branching(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else x


X = torch.ones(4, 8)

pytestmark = [
    # All are raised by torch while it compiles, about code of its own.
    pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


def roles(graphs: list[CapturedGraph]) -> list[str]:
    return [graph.name for graph in graphs]


def kinds(graph: CapturedGraph) -> Counter[Kind]:
    specs = (ops.spec_of(node.target) for node in graph.gm.graph.nodes if ops.is_collective(node))
    return Counter(spec.kind for spec in specs if spec is not None)


def assert_clean(graphs: list[CapturedGraph]) -> None:
    for graph in graphs:
        check(graph.gm, groups=graph.groups)
        assert all("val" in node.meta for node in graph.gm.graph.nodes if node.op != "output")


def test_forward_and_backward_of_a_replicated_model() -> None:
    with fake_world(8):
        graphs = capture_compiled(replicate(Net()), (X,))
    assert roles(graphs) == ["forward_0", "backward_0"]
    assert kinds(graphs[0]) == {}
    assert kinds(graphs[1]) == {Kind.ALL_REDUCE: 4}
    assert graphs[1].groups == {"0": tuple(range(8))}
    assert {graph.stage for graph in graphs} == {"aot"}
    assert_clean(graphs)


def test_largest_world() -> None:
    with fake_world(1024) as world:
        graphs = capture_compiled(fully_shard(Net(), mesh=world.mesh()), (X,))
    assert [graph.world_size for graph in graphs] == [1024, 1024]
    assert kinds(graphs[0]) == {Kind.ALL_GATHER: 4}
    assert kinds(graphs[1])[Kind.REDUCE_SCATTER] == 4
    assert_clean(graphs)


def test_stage_after_rewrites_has_its_own_form() -> None:
    with fake_world(4) as world:
        model = fully_shard(Net(), mesh=world.mesh())
        graphs = capture_compiled(model, (X,), stage="post_grad")
    assert roles(graphs) == ["forward_0", "backward_0"]
    assert {graph.stage for graph in graphs} == {"post_grad"}
    assert kinds(graphs[0]) == {Kind.ALL_GATHER: 4}
    assert not [n for graph in graphs for n in graph.gm.graph.nodes if n.target is torch.ops.aten.view.default]
    assert_clean(graphs)


def test_tensor_parallel_with_sequence_parts() -> None:
    with fake_world(4) as world:
        model = parallelize_decoder(Decoder(DecoderConfig(layers=1)), world.mesh())
        graphs = capture_compiled(model, (torch.zeros(1, 16, dtype=torch.int64),))
    assert roles(graphs) == ["forward_0", "backward_0"]
    assert all(kinds(g)[Kind.ALL_GATHER] and kinds(g)[Kind.REDUCE_SCATTER] for g in graphs)
    assert_clean(graphs)


def test_backward_of_distributed_data_parallel_is_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled autograd hands it to the compiler of forwards; the role must still be right."""
    monkeypatch.setattr(torch._dynamo.config, "optimize_ddp", "python_reducer")
    monkeypatch.setattr(torch._inductor.config, "_fuse_ddp_communication", False)
    with fake_world(4):
        graphs = capture_compiled(DistributedDataParallel(Net()), (X,))
    assert roles(graphs) == ["forward_0", "backward_0"]
    assert kinds(graphs[1]) == {Kind.ALL_REDUCE: 4}
    assert_clean(graphs)


def test_distributed_data_parallel_in_cpp_is_refused() -> None:
    with fake_world(4), pytest.raises(CaptureError, match="python_reducer"):
        capture_compiled(DistributedDataParallel(Net()), (X,))


def test_what_torch_skips_in_silence_is_said() -> None:
    """Without the Python reducer torch.compile looks past DDP's forward, and past torch's own containers below it."""
    model = nn.Sequential(nn.Linear(8, 8))
    with fake_world(4), pytest.raises(CaptureError, match=r"Sequential[\s\S]*class of your own"):
        capture_compiled(DistributedDataParallel(model), (X,), train=False)


def test_what_is_not_compiled_is_said() -> None:
    with fake_world(2), pytest.raises(CaptureError, match="nothing to compile"):
        capture_compiled(lambda x: x, (X,))


def test_each_part_around_a_graph_break_has_its_graphs() -> None:
    with fake_world(4):
        graphs = capture_compiled(replicate(Net(broken=True)), (X,))
    found = {graph.name: graph for graph in graphs}
    assert sorted(found) == ["backward_0", "backward_1", "forward_0", "forward_1"]
    assert [sum(kinds(found[name]).values()) for name in sorted(found)] == [2, 2, 0, 0]
    assert any(node.target is torch.ops.aten.tanh.default for node in found["forward_0"].gm.graph.nodes)
    assert not any(node.target is torch.ops.aten.tanh.default for node in found["forward_1"].gm.graph.nodes)


@pytest.mark.parametrize("model", [Net(broken=True), Branching()])
def test_graph_break_is_an_error_where_one_graph_is_asked_for(model: nn.Module) -> None:
    with fake_world(2), pytest.raises(CaptureError, match="does not become one graph"):
        capture_compiled(replicate(model, init_sync=False), (X,), fullgraph=True)


def test_branch_on_a_value_between_graphs_is_refused() -> None:
    with fake_world(2), pytest.raises(CaptureError, match=r"value of a tensor[\s\S]*test_capture_compiled"):
        capture_compiled(replicate(Branching()), (X,))


def test_inference() -> None:
    with fake_world(4) as world:
        model = fully_shard(Net(), mesh=world.mesh())
        graphs = capture_compiled(model, (X,), train=False)
    assert [graph.role for graph in graphs] == ["inference"]
    assert kinds(graphs[0]) == {Kind.ALL_GATHER: 4}


@pytest.mark.parametrize("how", ["argument", "mark"])
def test_symbolic_sizes(how: str) -> None:
    batch = torch.ones(6, 8)
    if how == "mark":
        torch._dynamo.mark_dynamic(batch, 0)
    with fake_world(2):
        graphs = capture_compiled(replicate(Net()), (batch,), dynamic=True if how == "argument" else None)
    shapes = [n.meta["val"].shape for n in graphs[0].gm.graph.nodes if isinstance(n.meta.get("val"), Tensor)]
    assert any(isinstance(size, torch.SymInt) for shape in shapes for size in shape)
    assert_clean(graphs)


def test_captures_do_not_influence_each_other() -> None:
    """A second batch size would make the compiler try a symbolic one, and a used model would have gradients."""
    texts = []
    with fake_world(2):
        model = replicate(Net(norm=True))
        for rows in (4, 6, 4):
            graphs = capture_compiled(model, (torch.ones(rows, 8),))
            texts.append([print_graph(graph.gm) for graph in graphs])
        assert all(p.grad is None for p in model.parameters())
        assert model.norm.num_batches_tracked == 0
    assert texts[0] == texts[2] != texts[1]


def test_function_around_a_model_and_a_loss_of_its_own() -> None:
    with fake_world(2):
        model = replicate(Net())

        def forward(x: Tensor, *, scale: float) -> dict[str, Any]:
            return {"y": model(x) * scale}

        graphs = capture_compiled(forward, (X,), {"scale": 2.0}, loss=lambda output: output["y"].mean())
        assert all(p.grad is None for p in model.parameters())
    assert roles(graphs) == ["forward_0", "backward_0"]
    assert kinds(graphs[1]) == {Kind.ALL_REDUCE: 4}


def test_model_without_memory() -> None:
    with fake_world(4) as world:
        with torch.device("meta"):
            model = Net()
        graphs = capture_compiled(fully_shard(model, mesh=world.mesh()), (torch.empty(4, 8, device="meta"),))
    devices = {str(n.meta["val"].device) for n in graphs[0].gm.graph.nodes if isinstance(n.meta.get("val"), Tensor)}
    assert devices == {"cpu"}


def test_capture_without_a_process_group_is_refused() -> None:
    with pytest.raises(GroupError, match="fake_world"):
        capture_compiled(Net(), (X,))
