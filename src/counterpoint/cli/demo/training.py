"""What each process of the demo does: train the same model on the same data, eager, and compiled by us without our
passes and with them, in each way of spreading it over the processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.nn.parallel import DistributedDataParallel

import counterpoint
from counterpoint.capture.example_models import Decoder, DecoderConfig, next_token_loss, parallelize_decoder
from counterpoint.cli.demo.processes import Say
from counterpoint.report.history import clear_reports, reports

CONFIG = DecoderConfig()
BATCH = 8
LENGTH = 33
NOTEWORTHY_S = 2.0
"""A first step that takes longer is worth a word."""


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
        # Measured, so that buckets get the sizes that fit this machine.
        link = counterpoint.calibrate_links()
        say("link", (link.latency_us, link.bandwidth_gbps) if link is not None else None)
        for way in settings.ways:
            say("way", _compare(way, settings, say))
    finally:
        dist.destroy_process_group()


def _compare(way: str, settings: Settings, say: Say) -> dict[str, Any]:
    chosen = WAYS[way]
    train = partial(_course, chosen, settings.steps, say)
    say("stage", f"{chosen.title}, eager, as torch does it")
    eager = train(chosen.theirs(fresh_model()))
    say("stage", f"{chosen.title}, compiling the graphs as they are captured")
    before = train(_compiled(chosen.ours, {**settings.options, "passes": ""}))
    say("stage", f"{chosen.title}, compiling the graphs with our passes")
    clear_reports()
    after = train(_compiled(chosen.ours, settings.options))
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


def _compiled(wrap: Callable[[Decoder], nn.Module], options: dict[str, Any]) -> Any:
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


def _spread(model: Decoder) -> nn.Module:
    return parallelize_decoder(model, init_device_mesh("cpu", (dist.get_world_size(),)))


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way of training on several processes."""

    title: str
    theirs: Callable[[Decoder], nn.Module]
    """How torch wraps the model, to train eagerly."""
    ours: Callable[[Decoder], nn.Module]
    """How it is wrapped to be compiled."""
    shares_data: bool = False
    """All ranks see the same batch, because together they hold one model."""


WAYS: dict[str, Way] = {
    "replicate": Way(title="replicate", theirs=_replicate_as_torch, ours=counterpoint.replicate),
    "fully_shard": Way(title="fully_shard", theirs=_shard_as_torch, ours=_shard),
    "tensor_parallel": Way(title="tensor parallel", theirs=_spread, ours=_spread, shares_data=True),
}


def _course(way: Way, steps: int, say: Say, model: Any) -> Course:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    losses: list[float] = []
    times: list[float] = []
    for step in range(steps):
        began = time.perf_counter()
        loss = next_token_loss(model, example_batch(1009 * step + (0 if way.shares_data else dist.get_rank())))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
        losses.append(_mean(loss.detach()))
        if step == 0 and times[0] > NOTEWORTHY_S:
            say("note", f"the first step took {times[0]:.0f} s, with what had to be compiled for it")
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
