"""Simulated steps of sharded decoders over 8 to 4,096 ranks: as captured, bucketed, scheduled, and the lower bound.

    python benchmarks/bench_simulated_scale.py [--quick] [--topology h200x8-ib400] [--tokens 4096] [--worlds 64 4096]

A few layers of each model (8B/4: four of the 8B shape; MoE/4: with experts of their own on each rank of a node, two
exchanges a layer) are captured at each world size without any GPU, forward and backward in one graph, bfloat16, every
parameter sharded over all ranks. All ways are told the same costs. `bound` is what no order and no buckets can beat;
behind a step stand the step over that bound, the exposed share of it, and the peak of memory. No overlap is compute
plus all travelling. Operators that inductor packs with count as no time.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import _per_layer  # noqa: F401  registers the pass
import torch
import torch.distributed as dist
from _bench import print_table
from _inductor_overlap import overlap_by_inductor
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.fx import GraphModule, Node

from counterpoint.capture.example_models import LLAMA_8B, Decoder, next_token_loss
from counterpoint.capture.fully_shard import fully_shard
from counterpoint.capture.graph import CapturedGraph
from counterpoint.capture.step import capture_step
from counterpoint.capture.world import World, fake_world
from counterpoint.cost.model import CostModel
from counterpoint.cost.presets import topology
from counterpoint.ir.groups import GroupTable
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.schedule.work import read_work
from counterpoint.sim.least import least_bounds
from counterpoint.sim.simulator import simulate

LLAMA_70B = replace(LLAMA_8B, dim=8192, layers=80, heads=64, hidden=28672)
EIGHT = replace(LLAMA_8B, layers=4)
MODELS = {"8B/4": EIGHT, "70B/2": replace(LLAMA_70B, layers=2), "MoE/4": EIGHT}
NODE = 8
WORLDS = (8, 64, 512, 4096)
QUICK_WORLDS = (8, 64)
BUCKETING = "bucket-all-gather,bucket-reduce-scatter"
OVERLAP = "schedule-overlap{mode=custom}"


class Experts(nn.Module):
    """A feed-forward part between two exchanges: each rank of a node holds an expert, and tokens spread evenly."""

    def __init__(self, expert: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.expert, self.group = expert, group

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        splits = [rows.shape[0] // NODE] * NODE
        sent = all_to_all_single_autograd(rows, splits, splits, self.group)
        result: Tensor = all_to_all_single_autograd(self.expert(sent), splits, splits, self.group)
        return result.view_as(x)


def captured(name: str, world: World, tokens: int) -> CapturedGraph:
    """Forward and backward of a few layers."""
    with torch.device("meta"):
        model = Decoder(MODELS[name]).to(torch.bfloat16)
        batch = torch.empty(1, tokens + 1, dtype=torch.int64)
        experts = dist.new_group(list(range(NODE))) if name.startswith("MoE") else None
        for layer in model.layers:
            if experts is not None:
                layer.feed_forward = Experts(layer.feed_forward, experts)
            fully_shard(layer, mesh=world.mesh())
        model = fully_shard(model, mesh=world.mesh())
    return capture_step(model, next_token_loss, batch)


def by_inductor(gm: GraphModule, model: CostModel, groups: GroupTable) -> None:
    """Inductor's scheduler, told our costs."""
    times = {item.node.name: (item.network_us or item.compute_us) / 1e3 for item in read_work(gm.graph, model, groups)}

    def node_ms(node: Node, *_: Any) -> float | None:
        return times.get(node.name)

    overlap_by_inductor(gm, node_ms)


def by_passes(passes: str) -> Way:
    """One of our pipelines."""

    def run(gm: GraphModule, model: CostModel, groups: GroupTable) -> None:
        options = CompileOptions(verify="structural", on_error="raise")
        run_pipeline(gm, Pipeline.parse(passes), options=options, groups=groups, cost_model=model)

    return run


Way = Callable[[GraphModule, CostModel, GroupTable], None]
WAYS: dict[str, Way] = {
    "as captured": by_passes(""),
    "per layer": by_passes("bench-per-layer"),
    "inductor overlap": by_inductor,
    "bucketed": by_passes(BUCKETING),
    "scheduled": by_passes(OVERLAP),
}


def rows(worlds: tuple[int, ...], model: CostModel, tokens: int) -> Iterator[list[Any]]:
    """One row a model, world and way."""
    for name in MODELS:
        for world_size in worlds:
            with fake_world(world_size) as world:
                yield from ways_of(name, world, model, tokens)


def ways_of(name: str, world: World, model: CostModel, tokens: int) -> Iterator[list[Any]]:
    """All ways of one model in one world, while its groups exist."""
    graph = captured(name, world, tokens)
    groups = GroupTable(graph.groups)
    bound_us = least_bounds(graph.gm, model, groups).step_us
    for what, run in WAYS.items():
        gm, began = copy.deepcopy(graph.gm), time.process_time()
        try:
            run(gm, model, groups)
        except Exception as error:
            yield [name, world.size, what, type(error).__name__, *["-"] * 8]
            continue
        passes_s, began = time.process_time() - began, time.process_time()
        step = simulate(gm, model, groups)
        took_s = time.process_time() - began
        if what == "as captured":
            none_us = step.compute_us + sum(span.us for span in step.collectives)
            yield _row(name, world.size, "no overlap", "-", bound_us, step.compute_us, none_us, "-", "-", 0.0, 0.0)
        calls, exposed = sum(1 for _ in step.collectives), f"{step.exposed_us / step.step_us:.0%}"
        peak = step.peak_bytes / 2**30
        yield _row(
            name, world.size, what, calls, bound_us, step.compute_us, step.step_us, exposed, peak, passes_s, took_s
        )


def _row(
    name: str, ranks: int, what: str, calls: Any, bound_us: float, compute_us: float, step_us: float, *rest: Any
) -> list[Any]:
    return [name, ranks, what, calls, bound_us / 1e3, compute_us / 1e3, step_us / 1e3, step_us / bound_us, *rest]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small worlds only")
    parser.add_argument("--topology", default="h200x8-ib400")
    parser.add_argument("--tokens", type=int, default=4096, help="of each rank")
    parser.add_argument("--worlds", type=int, nargs="+", help="numbers of ranks")
    asked = parser.parse_args()
    model = CostModel(topology=topology(asked.topology))
    columns = ["model", "ranks", "plan", "calls", "bound ms", "compute ms", "step ms", "step/bound", "exposed"]
    columns += ["peak GiB", "passes s", "simulate s"]
    worlds = tuple(asked.worlds or (QUICK_WORLDS if asked.quick else WORLDS))
    print_table(f"simulated steps on {asked.topology}", columns, rows(worlds, model, asked.tokens))


if __name__ == "__main__":
    main()
