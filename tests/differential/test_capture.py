"""A captured step, run on real ranks, is the step that eager training takes.

Tolerance: 2e-5 for losses (relative: a loss of 100 has steps of 8e-6 in float32), gradients and parameters after three
steps. Graph and eager differ by rounding only: the optimizer's bias correction is computed on float32 tensors in the
graph and on Python numbers in eager mode.
Adam gets a larger epsilon than its default, or it would blow up rounding in gradients near zero to the size of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from counterpoint.capture.example_models import Decoder, DecoderConfig, next_token_loss, parallelize_decoder
from counterpoint.capture.fully_shard import fully_shard
from counterpoint.capture.replicate import replicate
from counterpoint.capture.step import capture_step
from tests.support.gloo import RanksByWorldSize

TOLERANCE = 2e-5
STEPS = 3


def replicated() -> nn.Module:
    return replicate(Decoder(DecoderConfig(layers=1, tied=True)))


def sharded() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Decoder(DecoderConfig(layers=1, vocabulary=251))  # 251 rows do not divide evenly
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def hybrid() -> nn.Module:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicas", "shards"))
    return fully_shard(Decoder(DecoderConfig(layers=1)), mesh=mesh)


def tensor_parallel() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_decoder(Decoder(DecoderConfig(layers=1)), mesh)


def data_parallel() -> nn.Module:
    return DistributedDataParallel(Decoder(DecoderConfig(layers=1)))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)


def adam_by_lists(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-4, foreach=True)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def largest_difference(
    build: Callable[[], nn.Module], make_optimizer: Callable[[nn.Module], torch.optim.Optimizer], same_batch: bool
) -> dict[str, float]:
    """Train one model eagerly and its twin through the captured graph; the largest difference of each kind."""
    models: list[Any] = []
    for _ in range(2):
        torch.manual_seed(0)
        model = build()
        models.append((model, make_optimizer(model)))
    (eager, eager_optimizer), (model, optimizer) = models
    generator = torch.Generator().manual_seed(0 if same_batch else dist.get_rank())
    batches = [torch.randint(0, 250, (2, 17), generator=generator) for _ in range(STEPS)]
    before = [local(p).clone() for p in model.parameters()]
    step = capture_step(model, next_token_loss, batches[0], optimizer=optimizer)
    assert all(torch.equal(local(p), old) for p, old in zip(model.parameters(), before, strict=True))
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())
    worst = {"loss": 0.0, "gradient": 0.0, "parameter": 0.0, "moved": 0.0}
    for batch in batches:
        eager_optimizer.zero_grad()
        loss = next_token_loss(eager, batch)
        loss.backward()
        eager_optimizer.step()
        result = step.run(model, batch, optimizer)
        result.store(model, optimizer)
        worst["loss"] = max(worst["loss"], ((loss - result.loss) / loss).abs().item())
        for p, q in zip(eager.parameters(), model.parameters(), strict=True):
            worst["gradient"] = max(worst["gradient"], difference(p.grad, q.grad))
            worst["parameter"] = max(worst["parameter"], difference(p, q))
    worst["moved"] = max(difference(local(p), old) for p, old in zip(model.parameters(), before, strict=True))
    return worst


def local(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def difference(left: Any, right: Any) -> float:
    with torch.no_grad():
        full = [t.full_tensor() if isinstance(t, DTensor) else t for t in (left, right)]
        return (full[0] - full[1]).abs().max().item()


@pytest.mark.parametrize(
    ("build", "optimizer", "same_batch"),
    [
        pytest.param(replicated, adamw, False, id="replicate-tied-adamw"),
        pytest.param(sharded, momentum, False, id="fully_shard-uneven-sgd"),
        pytest.param(tensor_parallel, adam_by_lists, True, id="tensor-parallel-adam-foreach"),
        pytest.param(data_parallel, adamw, False, id="ddp-adamw"),
    ],
)
def test_step_on_two_ranks_equals_eager(ranks: RanksByWorldSize, build: Any, optimizer: Any, same_batch: bool) -> None:
    for worst in ranks(2).run(largest_difference, build, optimizer, same_batch):
        assert worst["moved"] > 1e-3
        assert max(worst["loss"], worst["gradient"], worst["parameter"]) < TOLERANCE, worst


def test_step_on_a_two_dimensional_mesh_equals_eager(ranks: RanksByWorldSize) -> None:
    for worst in ranks(4).run(largest_difference, hybrid, momentum, False):
        assert worst["moved"] > 1e-3
        assert max(worst["loss"], worst["gradient"], worst["parameter"]) < TOLERANCE, worst
