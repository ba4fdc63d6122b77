"""`replicate` and `fully_shard` against torch's own, on real gloo ranks: same losses, same gradients, same parameters.

Models and data are small whole numbers, made whole again after each step, so sums are exact in any order and most
comparisons are bitwise; where rounding takes part, the tolerance stands beside the test.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from counterpoint import fully_shard, replicate

# Every compiled comparison runs with each of these; None is plain eager mode.
BACKENDS: list[str | None] = [None, "aot_eager"]
STEPS = 3


class Mlp(nn.Module):
    """Sizes that no group divides, a layer smaller than any group, and a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.twice = nn.Linear(7, 7)
        self.last = nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.last(torch.relu(self.twice(self.twice(x))))


class Even(nn.Module):
    """Sizes that groups of two and of four divide."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Tied(nn.Module):
    """An embedding whose weight is also the head, with a normalisation that keeps running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.norm = nn.BatchNorm1d(4, affine=False)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.embed(x)))


class Checkpointed(nn.Module):
    """A layer under activation checkpointing, called once as a module and once as a bare function of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Even()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.inner, x, use_reentrant=False)
        return checkpoint(lambda y: y * self.scale, x, use_reentrant=False)


def integers(*shape: int, seed: int) -> Tensor:
    """Small whole numbers as floats."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


def whole_numbered(model: nn.Module) -> nn.Module:
    """The model with small whole numbers for parameters, the same on every rank."""
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(integers(*parameter.shape, seed=seed))
    return model


def make_whole_again(model: nn.Module) -> None:
    """Round the parameters to small whole numbers, so that the next step is exact too."""
    with torch.no_grad():
        for parameter in model.parameters():
            (parameter.to_local() if isinstance(parameter, DTensor) else parameter).round_().clamp_(-2, 2)


def whole(tensor: Tensor) -> Tensor:
    """The full value of a tensor that may be a DTensor, detached."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def train(
    model: nn.Module,
    reference: nn.Module,
    data: Callable[[int], Tensor],
    *,
    backend: str | None,
    rtol: float = 0.0,
    atol: float = 0.0,
    micro_batches: int = 1,
    fullgraph: bool = True,
) -> None:
    """A few steps of both models on the same data; loss, gradients and parameters must agree each time."""
    run = model if backend is None else torch.compile(model, backend=backend, fullgraph=fullgraph)
    optimizers = [torch.optim.SGD(each.parameters(), lr=2**-4) for each in (model, reference)]
    for step in range(STEPS):
        for micro in range(micro_batches):
            x = data(step * micro_batches + micro)
            losses = [each(x).float().sum() for each in (run, reference)]
            for loss in losses:
                loss.backward()
            torch.testing.assert_close(losses[0], losses[1], rtol=rtol, atol=atol)
        for (name, mine), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
            assert (mine.grad is None) == (theirs.grad is None), name
            if mine.grad is not None and theirs.grad is not None:
                torch.testing.assert_close(whole(mine.grad), whole(theirs.grad), rtol=rtol, atol=atol, msg=name)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for (name, mine), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(whole(mine), whole(theirs), rtol=rtol, atol=atol, msg=name)
        if rtol == 0:
            make_whole_again(model)
            make_whole_again(reference)


def own_data(*shape: int) -> Callable[[int], Tensor]:
    """Batches that differ by rank and by step."""
    return lambda step: integers(*shape, seed=100 * step + dist.get_rank())


def own_tokens(step: int) -> Tensor:
    """Token numbers that differ by rank and by step."""
    return torch.randint(0, 9, (6,), generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))


# ---- replicate ------------------------------------------------------------------------------------------------------


def job_replicate(backend: str | None) -> None:
    reference = nn.parallel.DistributedDataParallel(whole_numbered(Mlp()))
    model = whole_numbered(Mlp())
    with torch.no_grad():
        model.first.weight.add_(dist.get_rank())  # wrapping takes the first rank's values
    train(replicate(model), reference, own_data(4, 5), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_replicate_equals_ddp_bitwise(ranks, backend):
    ranks(2).run(job_replicate, backend, reset_compiler=True)


def job_replicate_buffers(backend: str | None) -> None:
    torch.manual_seed(dist.get_rank())
    model = Tied()
    reference = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    train(replicate(model), reference, own_tokens, backend=backend, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(model.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_replicate_copies_buffers_and_reduces_tied_parameters_as_ddp_does(ranks, backend):
    ranks(2).run(job_replicate_buffers, backend, reset_compiler=True)


# ---- fully_shard ----------------------------------------------------------------------------------------------------


def shard_both(
    model: nn.Module, inner: list[str], mesh: DeviceMesh | None, reshard: bool | None = None, **options: Any
) -> tuple[nn.Module, nn.Module]:
    """The model under our `fully_shard` and a copy under torch's, inner modules first."""
    reference = copy.deepcopy(model)
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    for wrapper, each in ((fully_shard, model), (torch_fully_shard, reference)):
        for name in inner:
            wrapper(each.get_submodule(name), mesh=mesh, reshard_after_forward=reshard, **options)
        wrapper(each, mesh=mesh, reshard_after_forward=reshard, **options)
    for (name, mine), (other, theirs) in zip(model.named_parameters(), reference.named_parameters(), strict=True):
        assert name == other
        assert isinstance(mine, DTensor)
        assert isinstance(theirs, DTensor)
        assert mine.placements == theirs.placements
        assert mine.shape == theirs.shape
        assert torch.equal(mine.to_local(), theirs.to_local())
    return model, reference


def job_fully_shard(backend: str | None, reshard: bool | None) -> None:
    model, reference = shard_both(whole_numbered(Mlp()), ["first", "twice"], None, reshard)
    train(model, reference, own_data(4, 5), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("world_size", "reshard"), [(2, False), (4, None)])
def test_fully_shard_equals_fsdp2_bitwise_on_uneven_and_empty_shards(ranks, world_size, reshard, backend):
    ranks(world_size).run(job_fully_shard, backend, reshard, reset_compiler=True)


def job_hybrid(backend: str | None) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model, reference = shard_both(whole_numbered(Mlp()), ["first"], mesh)
    train(model, reference, own_data(4, 5), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_two_dimensional_mesh_shards_and_replicates_as_hsdp_does(ranks, backend):
    ranks(4).run(job_hybrid, backend, reset_compiler=True)


def job_placements(backend: str | None) -> None:
    choose = lambda parameter: Shard(parameter.ndim - 1)  # noqa: E731
    model, reference = shard_both(whole_numbered(Even()), ["up"], None, True, shard_placement_fn=choose)
    train(model, reference, own_data(4, 8), backend=backend, micro_batches=2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_shard_placement_fn_and_gradient_accumulation_equal_fsdp2_bitwise(ranks, backend):
    ranks(2).run(job_placements, backend, reset_compiler=True)


POLICIES = {
    "bf16, reduced in bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
    "bf16, reduced in fp32, fp32 out": MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
    ),
    "fp16 divided in two parts": MixedPrecisionPolicy(param_dtype=torch.float16),
    "fp32 in, reduced in bf16": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16, cast_forward_inputs=False),
}


def job_mixed_precision(backend: str | None, policy: MixedPrecisionPolicy) -> None:
    torch.manual_seed(0)
    inner = [] if policy.output_dtype else ["first"]  # an inner unit casts its output too, to what its user cannot take
    model, reference = shard_both(Mlp(), inner, None, mp_policy=policy)
    assert model(own_data(4, 5)(0)).dtype == (policy.output_dtype or policy.param_dtype or torch.float32)
    # Two significant digits of bf16; fp16 is closer.
    train(model, reference, own_data(4, 5), backend=backend, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision_equals_fsdp2_within_its_rounding(ranks, backend, policy):
    ranks(2).run(job_mixed_precision, backend, POLICIES[policy], reset_compiler=True)


def job_checkpointing(backend: str | None) -> None:
    torch.manual_seed(0)
    model, reference = shard_both(Checkpointed(), ["inner"], None, True)
    train(model, reference, own_data(4, 8), backend=backend, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_activation_checkpointing_around_wrapped_layers(ranks, backend):
    ranks(2).run(job_checkpointing, backend, reset_compiler=True)


def job_inductor() -> None:
    torch.manual_seed(0)
    model, reference = shard_both(Even(), ["up"], None)
    train(model, reference, own_data(4, 8), backend="inductor", rtol=1e-5, atol=1e-5)


def test_inductor_compiles_a_sharded_model(ranks):
    ranks(2).run(job_inductor, reset_compiler=True)


def job_optimizer() -> None:
    torch.manual_seed(0)
    model, reference = shard_both(Mlp(), ["first"], None)
    optimizers = [torch.optim.AdamW(each.parameters()) for each in (model, reference)]
    for step in range(STEPS):
        norms = []
        for each, optimizer in zip((model, reference), optimizers, strict=True):
            optimizer.zero_grad()
            each(own_data(4, 5)(step)).sum().backward()
            norms.append(whole(nn.utils.clip_grad_norm_(each.parameters(), 1.0)))
            optimizer.step()
        torch.testing.assert_close(norms[0], norms[1])
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(whole(mine), whole(theirs))


def test_adamw_and_gradient_clipping_work_as_with_fsdp2(ranks):
    ranks(2).run(job_optimizer)


class Broken(nn.Module):
    """Uncompiled code inside a compiled forward, some of which reads the weight of another module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8, bias=False) for _ in range(3)])

    @torch.compiler.disable
    def uncompiled(self, x: Tensor) -> Tensor:
        return self.layers[1](x) @ self.layers[2].weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        torch._dynamo.graph_break()
        return self.uncompiled(x)


def job_broken(wrapper: str) -> None:
    reference = nn.parallel.DistributedDataParallel(whole_numbered(Broken()))
    model = (fully_shard if wrapper == "fully_shard" else replicate)(whole_numbered(Broken()))
    train(model, reference, own_data(4, 8), backend="aot_eager", fullgraph=False)


@pytest.mark.parametrize("wrapper", ["fully_shard", "replicate"])
def test_graph_breaks_lose_no_collective(ranks, wrapper):
    ranks(2).run(job_broken, wrapper, reset_compiler=True)


# ---- the graphs -----------------------------------------------------------------------------------------------------


def compiled_graphs(model: nn.Module, x: Tensor) -> list[torch.fx.GraphModule]:
    """The forward and the backward graph."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return make_boxed_func(gm.forward)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=min_cut_rematerialization_partition)
    torch.compile(model, backend=backend, fullgraph=True)(x).sum().backward()
    return graphs


def collective_counts(model: nn.Module, x: Tensor) -> list[dict[str, int]]:
    """How often each collective occurs in the forward and in the backward graph."""
    counts = []
    for graph in compiled_graphs(model, x):
        names = [node.target.name() for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
        found = [name.removeprefix("_c10d_functional::") for name in names if name.startswith("_c10d_functional")]
        counts.append({name: found.count(name) for name in sorted(set(found)) if name != "wait_tensor"})
    return counts


def job_graphs() -> list[Any]:
    found = []
    for reshard in (True, False, None):
        model = whole_numbered(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
        fully_shard(model[0], reshard_after_forward=reshard)
        found.append(collective_counts(fully_shard(model, reshard_after_forward=reshard), torch.ones(2, 8)))
        torch.compiler.reset()
    found.append(collective_counts(fully_shard(Checkpointed(), reshard_after_forward=True), torch.ones(2, 8)))
    return [*found, collective_counts(replicate(nn.Linear(8, 8)), torch.ones(2, 8))]


def test_backward_gathers_again_only_where_asked(ranks):
    for again, keep, undecided, checkpointed, replicated in ranks(2).run(job_graphs, reset_compiler=True):
        assert again == [{"all_gather_into_tensor": 4}, {"all_gather_into_tensor": 1, "reduce_scatter_tensor": 4}]
        assert keep == [{"all_gather_into_tensor": 4}, {"reduce_scatter_tensor": 4}]
        # The outermost unit keeps its parameters; the layer inside is first, and its backward does not need them.
        assert undecided == keep
        assert checkpointed == [
            {"all_gather_into_tensor": 3},
            {"all_gather_into_tensor": 3, "reduce_scatter_tensor": 3},
        ]
        assert replicated == [{}, {"all_reduce": 2}]


def job_inference(backend: str | None) -> None:
    model, reference = shard_both(whole_numbered(Mlp()), [], None, True)
    run = model if backend is None else torch.compile(model, backend=backend, fullgraph=True)
    x = own_data(4, 5)(0)
    with torch.no_grad():
        assert torch.equal(run(x), reference(x))
        assert torch.equal(replicate(whole_numbered(Mlp()))(x), reference(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_without_gradients(ranks, backend):
    ranks(2).run(job_inference, backend, reset_compiler=True)


def job_code() -> list[str]:
    cases = [(fully_shard(Even()), torch.ones(2, 8)), (replicate(Mlp()), torch.ones(2, 5))]
    return [graph.code for model, x in cases for graph in compiled_graphs(model, x)]


def test_ranks_with_equal_shapes_make_equal_graphs(ranks):
    first, second = ranks(2).run(job_code, reset_compiler=True)
    assert len(first) == 4
    assert first == second


def job_same_graph() -> int:
    counter = CompileCounterWithBackend("aot_eager")
    layers = [fully_shard(Even()) for _ in range(4)]
    for layer in layers:
        torch.compile(layer, backend=counter, fullgraph=True)(torch.ones(2, 8)).sum().backward()
    return counter.frame_count


def test_layers_of_one_class_share_one_compiled_graph(ranks):
    assert ranks(2).run(job_same_graph, reset_compiler=True) == [1, 1]


# ---- saving, loading, initialising ----------------------------------------------------------------------------------


def job_checkpoints() -> None:
    torch.manual_seed(0)
    model, reference = shard_both(Mlp(), ["first"], None)
    assert list(model.state_dict()) == list(Mlp().state_dict())
    fresh = fully_shard(Mlp())
    fresh.load_state_dict(model.state_dict())
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.zero_()
    loaded = {"model": reference.state_dict()}
    dcp.load(loaded, checkpoint_id=folder[0])
    reference.load_state_dict(loaded["model"])
    for one, two, three in zip(model.parameters(), fresh.parameters(), reference.parameters(), strict=True):
        assert torch.equal(whole(one), whole(two))
        assert torch.equal(whole(one), whole(three))
    x = integers(4, 5, seed=0)
    assert torch.equal(model(x), fresh(x))


def test_state_dict_and_distributed_checkpoint_pass_between_ours_and_fsdp2(ranks):
    ranks(2).run(job_checkpoints)


def job_meta() -> None:
    with torch.device("meta"):
        model = Mlp()
    fully_shard(model.first)
    fully_shard(model)
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu")
    for layer in (model.first, model.twice, model.last):
        nn.init.ones_(layer.weight)  # a wrapped module, read outside of a forward, shows the parameter itself
        nn.init.zeros_(layer.bias)
    with torch.no_grad():
        assert model(torch.ones(1, 5)).item() == 5 * 7**3


def test_a_model_made_on_the_meta_device_is_sharded_then_materialised(ranks):
    ranks(2).run(job_meta)


def job_tied(backend: str | None) -> None:
    torch.manual_seed(0)
    model, reference = Tied(), nn.parallel.DistributedDataParallel(Tied(), broadcast_buffers=False)
    model.load_state_dict(reference.module.state_dict())
    fully_shard(model.embed)  # the head, wrapped later with the rest, stays tied to it
    fully_shard(model)
    assert model.head._parameters["weight"] is model.embed._parameters["weight"]
    train(model, reference, own_tokens, backend=backend, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tied_parameters_stay_tied_across_units(ranks, backend):
    ranks(2).run(job_tied, backend, reset_compiler=True)


# ---- with tensor parallelism, and torch's own wrappers ---------------------------------------------------------------

TP_PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def job_tensor_parallel(backend: str | None, wrapper: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model, reference = (parallelize_module(whole_numbered(Even()), mesh["tp"], TP_PLAN) for _ in range(2))
    if wrapper == "fully_shard":
        fully_shard(model, mesh=mesh["dp"], reshard_after_forward=True)
        torch_fully_shard(reference, mesh=mesh["dp"])
    else:
        replicate(model, device_mesh=mesh["dp"])
        reference = nn.parallel.DistributedDataParallel(whole_numbered(Even()), process_group=mesh.get_group("dp"))
    data = lambda step: integers(4, 8, seed=10 * step + mesh.get_local_rank("dp"))  # noqa: E731
    train(model, reference, data, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrapper", ["fully_shard", "replicate"])
def test_wrappers_compose_with_tensor_parallel_bitwise(ranks, wrapper, backend):
    ranks(4).run(job_tensor_parallel, backend, wrapper, reset_compiler=True)


def job_plain_tensor_parallel(backend: str) -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model, reference = (parallelize_module(whole_numbered(Even()), mesh, TP_PLAN) for _ in range(2))
    train(model, reference, lambda step: integers(4, 8, seed=step), backend=backend)


@pytest.mark.parametrize("backend", [backend for backend in BACKENDS if backend])
def test_tensor_parallel_compiles_as_it_is(ranks, backend):
    ranks(2).run(job_plain_tensor_parallel, backend, reset_compiler=True)


def job_python_reducer(backend: str) -> None:
    def gradients(model: nn.Module, run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        run(own_data(4, 8)(0)).sum().backward()
        return [whole(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]

    reference = nn.parallel.DistributedDataParallel(whole_numbered(Even()))
    expected = gradients(reference, reference)
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        model = nn.parallel.DistributedDataParallel(whole_numbered(Even()))
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend=backend, fullgraph=True)):
            found = gradients(model, torch.compile(model, backend=backend, fullgraph=True))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("backend", [backend for backend in BACKENDS if backend])
def test_torch_ddp_with_the_python_reducer_compiles_as_it_is(ranks, backend):
    ranks(2).run(job_python_reducer, backend, reset_compiler=True)
