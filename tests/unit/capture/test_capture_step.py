"""A train step as one graph: what is in it, at which sizes, and what is refused. Values are proven on real ranks
(`tests/differential/test_capture.py`); here no graph is run except where a test says so."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from counterpoint.capture.example_models import LLAMA_8B, Decoder, next_token_loss
from counterpoint.capture.file import load_graph, save_graph
from counterpoint.capture.fully_shard import fully_shard
from counterpoint.capture.inputs import TensorRole
from counterpoint.capture.replicate import replicate
from counterpoint.capture.run import CapturedStep
from counterpoint.capture.step import capture_step
from counterpoint.capture.world import fake_world
from counterpoint.errors import CaptureError, GroupError
from counterpoint.ir import ops
from counterpoint.ir.collective import get_all_comm_blocks
from counterpoint.ir.ops import Kind
from counterpoint.ir.provenance import module_of
from counterpoint.ir.reason import Refusal
from counterpoint.ir.text import print_graph
from counterpoint.ir.verify import check


class Net(nn.Module):
    """Two layers with a norm that keeps statistics; `tied` uses one weight twice."""

    def __init__(self, width: int = 8, *, tied: bool = False, norm: bool = False, checkpointed: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()
        self.checkpointed = checkpointed
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            return torch.tanh(self.first(y))

        hidden = checkpoint(inner, x, use_reentrant=False) if self.checkpointed else inner(x)
        result: Tensor = self.norm(self.second(hidden))
        return result


def mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def kinds(captured: Any) -> Counter[Kind]:
    specs = (ops.spec_of(node.target) for node in captured.gm.graph.nodes if ops.is_collective(node))
    return Counter(spec.kind for spec in specs if spec is not None)


def assert_clean(captured: Any) -> None:
    """The verifier passes, every collective is a proper block, every node has a value."""
    check(captured.gm, groups=captured.groups)
    assert not [block for block in get_all_comm_blocks(captured.gm.graph) if isinstance(block, Refusal)]
    assert all("val" in node.meta for node in captured.gm.graph.nodes if node.op != "output")


@pytest.mark.parametrize("size", [2, 1024])
def test_replicate_reduces_each_gradient_once(size: int) -> None:
    with fake_world(size):
        step = capture_step(replicate(Net()), mean_square, torch.ones(4, 8))
    assert (step.role, step.world_size, step.rank, step.stage) == ("step", size, 0, "aot")
    assert step.groups == {"0": tuple(range(size))}
    assert kinds(step) == {Kind.ALL_REDUCE: 4}
    assert_clean(step)


def test_hybrid_sharding_uses_both_groups_of_the_mesh() -> None:
    with fake_world(8) as world:
        model = fully_shard(Net(), mesh=world.mesh(2, 4, names=("replicas", "shards")))
        step = capture_step(model, mean_square, torch.ones(4, 8))
    assert kinds(step) == {Kind.ALL_GATHER: 4, Kind.REDUCE_SCATTER: 4, Kind.ALL_REDUCE: 4}
    assert sorted(step.groups.values()) == [(0, 1, 2, 3), (0, 4)]
    assert_clean(step)


def test_graph_has_no_writes_and_names_everything() -> None:
    with fake_world(4):
        model = replicate(Net(tied=True, norm=True))
        optimizer = torch.optim.Adam(model.parameters())
        step = capture_step(model, mean_square, {"x": torch.ones(4, 8)}["x"], optimizer=optimizer)
    signature = step.signature
    assert signature.names(TensorRole.PARAMETER) == (
        "first.weight", "first.bias", "second.bias", "norm.weight", "norm.bias"
    )  # fmt: skip
    assert set(signature.output_names(TensorRole.BUFFER)) == {
        "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"
    }  # fmt: skip
    assert "first.weight.exp_avg" in signature.names(TensorRole.STATE)
    assert set(signature.names(TensorRole.STATE)) == set(signature.output_names(TensorRole.STATE))
    assert set(signature.names(TensorRole.PARAMETER)) == set(signature.output_names(TensorRole.GRADIENT))
    assert str(signature.outputs[0]) == "loss"
    assert not [node for node in step.gm.graph.nodes if str(node.target).endswith("_.default")]
    assert "parameter_first_weight" in {node.name for node in step.gm.graph.nodes}
    assert_clean(step)


def test_backward_nodes_know_the_line_of_their_forward() -> None:
    with fake_world(2):
        step = capture_step(replicate(Net()), mean_square, torch.ones(4, 8))
    multiplications = [n for n in step.gm.graph.nodes if "mm" in n.name and n.meta.get("autograd_backward")]
    assert multiplications
    assert all("test_capture_step.py" in (node.stack_trace or "") for node in multiplications)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_nodes_know_the_module_that_made_them_or_whose_gradient_they_are(checkpointed: bool) -> None:
    with fake_world(2) as world:
        net = Net(checkpointed=checkpointed)
        hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules())
        sharded = capture_step(fully_shard(net, mesh=world.mesh()), mean_square, torch.ones(4, 8))
        assert hooks == sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules())
        replicated = capture_step(replicate(Net()), mean_square, torch.ones(4, 8))
    for captured in (sharded, replicated):
        modules = [module_of(node) for node in captured.gm.graph.nodes if ops.is_collective(node)]
        assert set(modules) == {"first", "second"}
        products = [module_of(node) for node in captured.gm.graph.nodes if node.target is torch.ops.aten.addmm.default]
        assert products[:2] == ["first", "second"]


def test_model_and_optimizer_are_left_alone() -> None:
    with fake_world(2):
        model = replicate(Net(norm=True))
        optimizer = torch.optim.AdamW(model.parameters())
        parameters = {name: (p, p.clone()) for name, p in model.state_dict(keep_vars=True).items()}
        capture_step(model, mean_square, torch.ones(4, 8), optimizer=optimizer)
        assert not optimizer.state
        assert all(p.grad is None for p in model.parameters())
        for name, value in model.state_dict(keep_vars=True).items():
            assert value is parameters[name][0]
            assert torch.equal(value, parameters[name][1])


def test_failed_capture_leaves_the_model_alone() -> None:
    def broken(model: nn.Module, batch: Tensor) -> Tensor:
        model(batch)
        raise LookupError

    with fake_world(2):
        model = replicate(Net())
        before = list(model.parameters())
        with pytest.raises(LookupError):
            capture_step(model, broken, torch.ones(4, 8))
        assert all(p is q for p, q in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("build", [lambda m, _: replicate(m), lambda m, w: fully_shard(m, mesh=w.mesh(2, 4))])
def test_ranks_capture_the_same_collectives(build: Callable[..., nn.Module]) -> None:
    seen = []
    for rank in (0, 3):
        with fake_world(8, rank) as world:
            step = capture_step(build(Net(), world), mean_square, torch.ones(4, 8))
        blocks = get_all_comm_blocks(step.gm.graph)
        assert all(rank in step.groups[str(block.collective.group)] for block in blocks)  # type: ignore[union-attr]
        seen.append(
            [
                (b.collective.kind, len(step.groups[str(b.collective.group)]), b.collective.sent.shapes)  # type: ignore[union-attr]
                for b in blocks
            ]
        )
    assert seen[0] == seen[1]


def test_symbols_stand_for_marked_sizes() -> None:
    batch = torch.ones(6, 8)
    torch._dynamo.mark_dynamic(batch, 0)
    with fake_world(2):
        marked = capture_step(replicate(Net()), mean_square, batch)
        fixed = capture_step(replicate(Net()), mean_square, batch, dynamic=False)

    def is_symbolic(step: CapturedStep) -> bool:
        shape = next(n for n in step.gm.graph.nodes if n.name == "batch").meta["val"].shape
        return not isinstance(shape[0], int) and isinstance(shape[1], int)

    assert is_symbolic(marked)
    assert not is_symbolic(fixed)
    assert_clean(marked)


def test_checkpointed_part_is_computed_again_in_backward() -> None:
    with fake_world(2):
        plain = capture_step(replicate(Net()), mean_square, torch.ones(4, 8))
        again = capture_step(replicate(Net(checkpointed=True)), mean_square, torch.ones(4, 8))

    def tanhs(step: CapturedStep) -> int:
        return sum(1 for node in step.gm.graph.nodes if node.target is torch.ops.aten.tanh.default)

    assert (tanhs(plain), tanhs(again)) == (1, 2)
    assert_clean(again)


def test_inference_has_no_backward() -> None:
    with fake_world(2) as world:
        model = fully_shard(Net(), mesh=world.mesh())
        step = capture_step(model, mean_square, torch.ones(4, 8), train=False)
    assert step.role == "inference"
    assert kinds(step) == {Kind.ALL_GATHER: 4}
    assert [str(slot) for slot in step.signature.outputs] == ["loss"]


def test_large_model_needs_no_memory() -> None:
    """Llama-8B in width, two layers, sharded over 1024 ranks, from the meta device: weights would take 7 GB."""
    from dataclasses import replace

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with fake_world(1024) as world:
        with torch.device("meta"):
            model = Decoder(replace(LLAMA_8B, layers=2))
        for layer in model.layers:
            fully_shard(layer, mesh=world.mesh())
        fully_shard(model, mesh=world.mesh())
        step = capture_step(model, next_token_loss, torch.empty(1, 4097, dtype=torch.int64, device="meta"))
    assert kinds(step) == {Kind.ALL_GATHER: 21, Kind.REDUCE_SCATTER: 21}
    devices = {str(n.meta["val"].device) for n in step.gm.graph.nodes if isinstance(n.meta.get("val"), Tensor)}
    assert devices == {"cpu"}
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 1024 * 1024


def test_step_survives_a_file_and_runs(tmp_path: Path) -> None:
    """On one rank the collectives of the fake group are right: they hand back what they are given."""
    with fake_world(1):
        model = replicate(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = capture_step(model, mean_square, torch.ones(4, 8), optimizer=optimizer)
        save_graph(tmp_path / "step", step)
        loaded = CapturedStep.of(load_graph(tmp_path / "step"))
        assert loaded.signature == step.signature
        batch = torch.randn(4, 8)
        loss = mean_square(model, batch)
        result = loaded.run(model, batch, optimizer)
        assert torch.allclose(result.loss, loss)
        loss.backward()
        expected = {name: p - 0.1 * p.grad for name, p in model.named_parameters() if p.grad is not None}
        result.store(model, optimizer)
        for name, parameter in model.named_parameters():
            assert torch.allclose(parameter, expected[name])


def test_step_refuses_other_places_and_shapes() -> None:
    with fake_world(2):
        model = replicate(Net())
        step = capture_step(model, mean_square, torch.ones(4, 8))
        with pytest.raises(CaptureError, match=r"\[5, 8\]"):
            step.run(model, torch.ones(5, 8))
    with fake_world(2, rank=1), pytest.raises(GroupError, match="rank 0 of 2"):
        step.run(model, torch.ones(4, 8))


_PRINT = """
import torch
from counterpoint.ir.text import print_graph
from tests.unit.capture.test_capture_step import *
with fake_world(8) as world:
    model = fully_shard(Net(norm=True), mesh=world.mesh())
    optimizer = torch.optim.AdamW(model.parameters())
    print(print_graph(capture_step(model, mean_square, torch.ones(4, 8), optimizer=optimizer).gm))
"""


def test_two_processes_capture_the_same_text() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PRINT],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            cwd=Path(__file__).parents[3],
        )
        for seed in ("1", "2")
    ]
    texts = [process.communicate(timeout=240)[0] for process in processes]
    assert texts[0] == texts[1]
    assert "reduce_scatter" in texts[0]


class Branching(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("model", "loss_fn", "message"),
    [
        (Branching, mean_square, r"value of a tensor.*test_capture_step.py"),
        (Net, lambda model, batch: model(batch), "not a scalar"),
        (Net, lambda model, batch: 1.0, "float, not a scalar"),
        (Net, lambda model, batch: batch.sum(), "does not depend on any parameter"),
    ],
)
def test_steps_that_are_no_graph_are_refused(model: Any, loss_fn: Any, message: str) -> None:
    with fake_world(2), pytest.raises(CaptureError, match=message):
        capture_step(replicate(model()), loss_fn, torch.ones(4, 8))


def test_optimizers_that_are_no_graph_are_refused() -> None:
    class Impossible(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            if self.param_groups[0]["params"][0].sum() > 0:
                super().step(closure)

    with fake_world(2):
        model = replicate(Net())
        for optimizer, message in (
            (torch.optim.LBFGS(model.parameters()), "LBFGS"),
            (torch.optim.SparseAdam(model.parameters()), "SparseAdam"),
            (Impossible(model.parameters()), "Impossible"),
            (torch.optim.SGD(Net().parameters()), "do not belong"),
        ):
            with pytest.raises(CaptureError, match=message):
                capture_step(model, mean_square, torch.ones(4, 8), optimizer=optimizer)


def test_hooks_that_a_graph_would_miss_are_refused() -> None:
    with fake_world(2):
        model = replicate(Net())
        model.first.weight.register_post_accumulate_grad_hook(lambda parameter: None)
        with pytest.raises(CaptureError, match=r"first\.weight has a hook"):
            capture_step(model, mean_square, torch.ones(4, 8))
        parallel = nn.parallel.DistributedDataParallel(Net())
        parallel.register_comm_hook(None, lambda state, bucket: torch.futures.Future())
        with pytest.raises(CaptureError, match="communication hook"):
            capture_step(parallel, mean_square, torch.ones(4, 8))


def test_torch_fsdp_is_refused_with_our_wrapper_named() -> None:
    from torch.distributed.fsdp import fully_shard as torch_fully_shard

    with fake_world(2) as world:
        model = torch_fully_shard(Net(), mesh=world.mesh())
        with pytest.raises(CaptureError, match=r"counterpoint\.fully_shard"):
            capture_step(model, mean_square, torch.ones(4, 8))


def test_capture_without_a_process_group_is_refused() -> None:
    assert not dist.is_initialized()
    with pytest.raises(GroupError, match="fake_world"):
        capture_step(Net(), mean_square, torch.ones(4, 8))


def test_optimizer_state_of_its_own_is_kept() -> None:
    with fake_world(1):
        model = replicate(Net())
        optimizer = torch.optim.NAdam(model.parameters())
        step = capture_step(model, mean_square, torch.ones(4, 8), optimizer=optimizer)
        with pytest.raises(CaptureError, match="first values are not zeros"):
            step.run(model, torch.ones(4, 8), optimizer)
        mean_square(model, torch.ones(4, 8)).backward()
        optimizer.step()
        step.run(model, torch.ones(4, 8), optimizer).store(model, optimizer)
        assert optimizer.state[model.first.weight]["step"] == 2


def test_printed_graph_is_the_same_twice() -> None:
    with fake_world(2):
        texts = {print_graph(capture_step(replicate(Net()), mean_square, torch.ones(4, 8)).gm) for _ in range(2)}
    assert len(texts) == 1


def test_parameters_gathered_by_parametrization_are_captured() -> None:
    """Sharding by DTensor redistribution, written without our wrappers."""
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.nn.utils import parametrize

    class Gather(nn.Module):
        def forward(self, x: Any) -> Tensor:
            whole: Tensor = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial("avg")])
            return whole

    with fake_world(8) as world:
        model, mesh = Net(), world.mesh()
        for layer in (model.first, model.second):
            for name, parameter in list(layer.named_parameters(recurse=False)):
                sharded = distribute_tensor(parameter.data, mesh, [Shard(0)], src_data_rank=None)
                setattr(layer, name, nn.Parameter(sharded))
                parametrize.register_parametrization(layer, name, Gather(), unsafe=True)
        step = capture_step(model, mean_square, torch.ones(4, 8))
    assert kinds(step) == {Kind.ALL_GATHER: 4, Kind.REDUCE_SCATTER: 4}
    assert_clean(step)
