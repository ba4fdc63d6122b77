"""The backend on real gloo ranks: it trains as eager mode does, and every collective is accounted for.

Models and data are small whole numbers, so sums are exact in any order and comparisons are bitwise.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.utils.parametrize as parametrize
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Partial
from torch.utils.checkpoint import checkpoint

from counterpoint import fully_shard, replicate
from counterpoint.ir import ops
from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.registry import register
from counterpoint.report.history import CompileRecord, clear_reports, reports
from tests.support.gloo import PerRank

EAGER: dict[str, Any] = {"codegen": "eager", "on_error": "raise", "verify": "full"}
INDUCTOR: dict[str, Any] = {"codegen": "inductor", "on_error": "raise", "verify": "full"}
STEPS = 2


class Mlp(nn.Module):
    """Two layers whose sizes two and four divide."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Checkpointed(Mlp):
    """The same, computed again in the backward."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


def integers(*shape: int, seed: int) -> Tensor:
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


def whole_numbered(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(integers(*parameter.shape, seed=seed))
    return model


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def own_data(step: int, rows: int = 4) -> Tensor:
    return integers(rows, 8, seed=10 * step + dist.get_rank())


def same_data(step: int) -> Tensor:
    return integers(4, 8, seed=10 * step)


def assert_trains_alike(
    run: Callable[[Tensor], Tensor],
    model: nn.Module,
    reference: nn.Module,
    data: Callable[[int], Tensor] = own_data,
) -> None:
    """Losses and gradients of both, step by step."""
    for step in range(STEPS):
        losses = [each(data(step)).sum() for each in (run, reference)]
        for loss in losses:
            loss.backward()
        assert torch.equal(losses[0], losses[1])
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.equal(whole(mine.grad), whole(theirs.grad))
        model.zero_grad()
        reference.zero_grad()


def accounted() -> list[tuple[str, int]]:
    """Role and number of verdicts of each graph, after a check that no collective lacks one."""
    for record in reports():
        assert sum(map(len, record.ledgers)) == record.collectives or record.cache != "off", str(record)
        assert record.problems == (), str(record)
    return [(record.role, sum(map(len, record.ledgers))) for record in reports()]


def compiled(model: Any, options: dict[str, Any], **arguments: Any) -> Any:
    clear_reports()
    return torch.compile(model, backend="counterpoint", options=options, **arguments)


# ---- what users train with ------------------------------------------------------------------------------------------


def job_replicate(options: dict[str, Any]) -> list[tuple[str, int]]:
    reference = nn.parallel.DistributedDataParallel(whole_numbered(Mlp()))
    model = replicate(whole_numbered(Mlp()))
    assert_trains_alike(compiled(model, options, fullgraph=True), model, reference)
    return accounted()


def job_fully_shard(options: dict[str, Any], reshard: bool, kind: type[Mlp] = Mlp) -> list[tuple[str, int]]:
    model, reference = whole_numbered(kind()), whole_numbered(kind())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    torch_fully_shard(reference, mesh=mesh, reshard_after_forward=reshard)
    assert_trains_alike(compiled(model, options), model, reference)
    return accounted()


def job_hybrid(options: dict[str, Any]) -> list[tuple[str, int]]:
    model, reference = whole_numbered(Mlp()), whole_numbered(Mlp())
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    fully_shard(model, mesh=mesh)
    torch_fully_shard(reference, mesh=mesh)
    assert_trains_alike(compiled(model, options), model, reference)
    return accounted()


def job_tensor_parallel(options: dict[str, Any]) -> list[tuple[str, int]]:
    reference = whole_numbered(Mlp())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(copy.deepcopy(reference), mesh, plan)
    assert_trains_alike(compiled(model, options, fullgraph=True), model, reference, same_data)
    return accounted()


class Gather(nn.Module):
    """A parametrization that gathers a sharded weight where it is used."""

    def forward(self, weight: DTensor) -> Tensor:
        return weight.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial("sum")])


def job_parametrized(options: dict[str, Any]) -> list[tuple[str, int]]:
    model, reference = whole_numbered(Mlp()), nn.parallel.DistributedDataParallel(whole_numbered(Mlp()))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model.up, model.down):
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.data, mesh, [Shard(0)], src_data_rank=None))
        parametrize.register_parametrization(layer, "weight", Gather(), unsafe=True)
    run = compiled(model, options, fullgraph=True)
    for step in range(STEPS):
        loss = run(own_data(step)).sum()
        loss.backward()
        # The parametrization sums gradients where DDP takes their mean.
        expected = reference(own_data(step)).sum()
        expected.backward()
        assert torch.equal(loss, expected)
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.equal(whole(mine.grad), dist.get_world_size() * theirs.grad)
        model.zero_grad()
        reference.zero_grad()
    return accounted()


def job_ddp_split(options: dict[str, Any]) -> list[tuple[str, int]]:
    model = nn.parallel.DistributedDataParallel(whole_numbered(Mlp()))
    reference = nn.parallel.DistributedDataParallel(whole_numbered(Mlp()))
    assert_trains_alike(compiled(model, options), model, reference)
    return accounted()


@contextlib.contextmanager
def python_reducer() -> Iterator[None]:
    """DDP whose gradients compiled autograd sees. Building one changes inductor's settings, so they are kept apart."""
    from torch._inductor import config

    kept = {name: getattr(config, name) for name in ("_fuse_ddp_communication", "_fuse_ddp_bucket_size")}
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"), config.patch(kept):
        yield


def train_with_compiled_autograd(options: dict[str, Any]) -> None:
    reference = nn.parallel.DistributedDataParallel(whole_numbered(Mlp()))
    with python_reducer():
        model = nn.parallel.DistributedDataParallel(whole_numbered(Mlp()))
        run = compiled(model, options)
        backward = torch.compile(backend="counterpoint", options=options)
        for step in range(STEPS):
            with torch._dynamo.compiled_autograd._enable(backward):
                loss = run(own_data(step)).sum()
                loss.backward()
            expected = reference(own_data(step)).sum()
            expected.backward()
            assert torch.equal(loss, expected)
            for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
                assert torch.equal(mine.grad, theirs.grad)
            model.zero_grad()
            reference.zero_grad()


def job_ddp_compiled_autograd(options: dict[str, Any]) -> list[tuple[str, int]]:
    train_with_compiled_autograd(options)
    return accounted()


def of_role(accounts: list[list[tuple[str, int]]], role: str) -> set[int]:
    """How many verdicts the graphs of a role have, over all ranks."""
    return {verdicts for account in accounts for found, verdicts in account if found == role}


def test_replicate_is_accounted_for(ranks: Any) -> None:
    accounts = ranks(2).run(job_replicate, EAGER, reset_compiler=True)
    assert of_role(accounts, "backward") == {2}


@pytest.mark.parametrize("reshard", [False, True])
def test_fully_shard_gathers_once_or_twice(ranks: Any, reshard: bool) -> None:
    accounts = ranks(2).run(job_fully_shard, EAGER, reshard, reset_compiler=True)
    assert of_role(accounts, "forward") == {2}
    # Two reduce-scatters, and with resharding the gathers that backward needs again.
    (backward,) = of_role(accounts, "backward")
    assert backward > 2 if reshard else backward == 2


def test_activation_checkpointing_works_on_sharded_parameters(ranks: Any) -> None:
    accounts = ranks(2).run(job_fully_shard, EAGER, True, Checkpointed, reset_compiler=True)
    assert of_role(accounts, "forward") == {2}


def test_both_groups_of_a_nested_mesh_are_accounted_for(ranks: Any) -> None:
    accounts = ranks(4).run(job_hybrid, EAGER, reset_compiler=True)
    (backward,) = of_role(accounts, "backward")
    assert backward >= 4


def test_tensor_parallel_works_as_it_is(ranks: Any) -> None:
    accounts = ranks(2).run(job_tensor_parallel, EAGER, reset_compiler=True)
    assert of_role(accounts, "forward") == {1}


def test_parameters_gathered_by_a_parametrization_work(ranks: Any) -> None:
    accounts = ranks(2).run(job_parametrized, EAGER, reset_compiler=True)
    assert of_role(accounts, "forward") == {2}
    assert of_role(accounts, "backward") == {2}


def test_ddp_with_its_own_splitting_of_graphs_works(ranks: Any) -> None:
    accounts = ranks(2).run(job_ddp_split, EAGER, reset_compiler=True)
    assert {verdicts for account in accounts for _, verdicts in account} == {0}


def test_ddp_with_compiled_autograd_has_its_reductions_in_the_backward(ranks: Any) -> None:
    accounts = ranks(2).run(job_ddp_compiled_autograd, EAGER, reset_compiler=True)
    assert of_role(accounts, "forward") == {0}
    assert of_role(accounts, "backward") == {2}


# ---- generated code, and its cache ----------------------------------------------------------------------------------


@register
@dataclass(frozen=True, kw_only=True)
class TurnTwice(Pass):
    """Transposes the input of every reduce-scatter twice: nothing in value, and visible in the report."""

    name: ClassVar[str] = "test-turn-twice"

    def run(self, context: PassContext) -> None:
        """Insert two transpositions before each reduce-scatter."""
        target = torch.ops._c10d_functional.reduce_scatter_tensor.default
        for node in context.graph.find_nodes(op="call_function", target=target):
            payload = ops.argument(node, "input")
            with context.editor.transaction("turn twice") as tx:
                once = tx.call(torch.ops.aten.permute.default, (payload, [1, 0]), before=node)
                twice = tx.call(torch.ops.aten.permute.default, (once, [1, 0]), before=node)
                tx.replace_input(node, payload, twice)


def rank_dependent(x: Tensor, w: Tensor) -> Tensor:
    """What each rank gets depends on its place in the group. Library calls only, so that no kernel must be compiled."""
    gathered = funcol.all_gather_tensor(x @ w, 0, dist.group.WORLD)
    return funcol.reduce_scatter_tensor(gathered @ w, "sum", 0, dist.group.WORLD) @ w


Summary = tuple[str, str, str, int, dict[str, int]]


def summary(record: CompileRecord) -> Summary:
    edits = {name: count for report in record.reports for one in report.passes for name, count in one.operators.items()}
    return record.role, record.cache, record.origin, sum(map(len, record.ledgers)), edits


def job_cached(folder: str, options: dict[str, Any], version: str | None = None) -> Summary:
    """Compile one function with its cache in the folder; check its values; say what the record says."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    x, w = integers(4, 4, seed=dist.get_rank()), integers(4, 4, seed=7)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        # Editing the package while its tests run is no change of version; the hash of sources has a test of its own.
        patch.setattr("counterpoint.inductor.fingerprint.source_hash", lambda: "these sources")
        if version is not None:
            patch.setattr("counterpoint.inductor.fingerprint.package_version", lambda: version)
        torch.compiler.reset()
        result = compiled(rank_dependent, INDUCTOR | options)(x, w)
    assert torch.equal(result, rank_dependent(x, w))
    (record,) = reports()
    assert record.problems == ()
    return summary(record)


def fresh(ranks: Any) -> Any:
    """Two ranks in processes that have compiled nothing yet."""
    ranks(2).stop()
    return ranks(2)


TURN = {"passes": "test-turn-twice"}
TURNED = {"aten.permute.default": 2}


@pytest.fixture(scope="module")
def filled(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that rank 0 alone has filled; rank 1 compiled for itself elsewhere."""
    mine, other = tmp_path_factory.mktemp("rank0"), tmp_path_factory.mktemp("rank1")
    found = fresh(ranks).run(job_cached, PerRank([str(mine), str(other)]), TURN)
    assert [one[:4] for one in found] == [("inference", "miss", "run", 2)] * 2
    assert found[0][4] == TURNED
    return mine


def test_what_one_rank_compiled_is_right_for_another_in_a_new_process(ranks: Any, filled: Path) -> None:
    found = fresh(ranks).run(job_cached, str(filled), TURN)
    assert found == [("inference", "hit", "stored", 2, TURNED)] * 2


@pytest.mark.parametrize(
    "change",
    [{"options": {}}, {"options": TURN | {"bitwise": True}}, {"options": TURN, "version": "999.0"}],
    ids=["other passes", "other option", "other version"],
)
def test_a_changed_option_or_version_misses(ranks: Any, filled: Path, change: dict[str, Any]) -> None:
    # One rank may already hit what the other has just compiled.
    assert "miss" in {found[1] for found in ranks(2).run(job_cached, str(filled), **change)}
    assert {found[1] for found in ranks(2).run(job_cached, str(filled), **change)} == {"hit"}


@pytest.mark.parametrize("damage", ["gone", "garbled"])
def test_a_report_that_is_gone_or_garbled_is_computed_again(ranks: Any, filled: Path, damage: str) -> None:
    for file in (filled / "counterpoint" / "reports").rglob("*.json"):
        file.unlink() if damage == "gone" else file.write_text("{")
    found = ranks(2).run(job_cached, str(filled), TURN)
    assert found == [("inference", "hit", "recomputed", 2, TURNED)] * 2


def job_ddp_in_force(options: dict[str, Any]) -> list[tuple[str, str, str]]:
    train_with_compiled_autograd(options)
    assert all(record.problems == () for record in reports())
    return [
        (record.role, str(*record.ledgers), record.in_force.get("torch passes on", ""))
        for record in reports()
        if record.collectives
    ]


@pytest.mark.parametrize(
    ("passes", "verdicts", "on"),
    [
        ({"lower": False}, "2 bucketed", ""),
        # Without a fusion of ours, torch's own stays on, and has merged the two before our passes see the graph.
        ({"passes": "verify-graph"}, "1 left-alone", "_fuse_ddp_communication"),
    ],
    ids=["ours", "torch's"],
)
def test_generated_code_trains_ddp_and_one_of_the_two_fusions_is_on(
    ranks: Any, passes: Any, verdicts: str, on: str
) -> None:
    expected = [("backward", verdicts, on)]
    assert ranks(2).run(job_ddp_in_force, INDUCTOR | passes, reset_compiler=True) == [expected] * 2


def test_generated_code_trains_sharded_parameters(ranks: Any) -> None:
    accounts = ranks(2).run(job_fully_shard, INDUCTOR, True, reset_compiler=True)
    assert of_role(accounts, "forward") == {2}
    assert of_role(accounts, "backward") == {3}
