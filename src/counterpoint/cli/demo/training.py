"""What each process of the demo does: train the same model on the same data, eager, and compiled by us without our
passes and with them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.nn.parallel import DistributedDataParallel

import counterpoint
from counterpoint.capture.example_models import Decoder, DecoderConfig, next_token_loss
from counterpoint.cli.demo.processes import Say
from counterpoint.report.history import clear_reports, reports

CONFIG = DecoderConfig()
BATCH = 8
LENGTH = 33


@dataclass(frozen=True)
class Settings:
    """What to train, for how long."""

    store: str
    """File through which the processes find each other."""
    ways: tuple[str, ...]
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the compile."""


@dataclass(frozen=True)
class Course:
    """How one training went on one rank."""

    losses: list[float]
    step_ms: float
    """Median of the second half."""
    first_step_s: float


def train(settings: Settings, rank: int, world_size: int, say: Say) -> None:
    """Train in every way that the settings ask for. Rank 0 tells what came of it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{settings.store}", rank=rank, world_size=world_size)
    try:
        for way in settings.ways:
            say("way", _compare(way, settings, say))
    finally:
        dist.destroy_process_group()


def _compare(way: str, settings: Settings, say: Say) -> dict[str, Any]:
    theirs, ours = WAYS[way]
    say("stage", f"{way}, eager, as torch does it")
    eager = _course(theirs(fresh_model()), settings.steps, say)
    say("stage", f"{way}, compiling the graphs as they are captured")
    before = _course(_compiled(ours, {**settings.options, "passes": ""}), settings.steps, say)
    say("stage", f"{way}, compiling the graphs with our passes")
    clear_reports()
    after = _course(_compiled(ours, settings.options), settings.steps, say)
    found = reports()
    return {
        "way": way,
        "eager": eager,
        "before": before,
        "after": after,
        "codegen": sorted({record.in_force.get("codegen", "?") for record in found}),
        "problems": [problem for record in found for problem in record.problems],
        "reports": [report.to_data() for record in found for report in record.reports],
    }


def _compiled(wrap: Callable[[nn.Module], nn.Module], options: dict[str, Any]) -> Any:
    return torch.compile(wrap(fresh_model()), backend="counterpoint", options=options)


def fresh_model() -> Decoder:
    """The model, the same on every rank and in every training."""
    torch.manual_seed(0)
    return Decoder(CONFIG)


def _replicate_as_torch(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def _shard_as_torch(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.get_submodule("layers").children():
        torch_fully_shard(layer, mesh=mesh)
    torch_fully_shard(model, mesh=mesh)
    return model


def _shard(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.get_submodule("layers").children():
        counterpoint.fully_shard(layer, mesh=mesh)
    return counterpoint.fully_shard(model, mesh=mesh)


WAYS: dict[str, tuple[Callable[[nn.Module], nn.Module], Callable[[nn.Module], nn.Module]]] = {
    "replicate": (_replicate_as_torch, counterpoint.replicate),
    "fully_shard": (_shard_as_torch, _shard),
}
"""By name: how torch wraps the model, and how we do."""


def _course(model: Any, steps: int, say: Say) -> Course:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    losses: list[float] = []
    times: list[float] = []
    for step in range(steps):
        began = time.perf_counter()
        loss = next_token_loss(model, example_batch(1009 * step + dist.get_rank()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
        losses.append(_mean(loss.detach()))
        say("step", {"step": step + 1, "of": steps, "loss": losses[-1]})
    return Course(losses, 1e3 * statistics.median(times[len(times) // 2 :]), times[0])


def example_batch(seed: int = 0) -> Tensor:
    """Counting by a stride from some start: a rule that a small model learns in a few steps."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(0, CONFIG.vocabulary, (BATCH, 1), generator=generator)
    stride = torch.randint(1, 4, (BATCH, 1), generator=generator)
    return (start + stride * torch.arange(LENGTH)) % CONFIG.vocabulary


def _mean(loss: Tensor) -> float:
    total = loss.clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()
