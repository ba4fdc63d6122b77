"""Simulated steps of sharded decoders over 8 to 4,096 ranks: as captured, bucketed, scheduled, and the lower bound.

    python benchmarks/bench_simulated_scale.py [--quick] [--topology h200x8-ib400] [--tokens 4096]

A few layers of each model (8B/4: four of the 8B shape) are captured at each world size without any GPU, forward and
backward in one graph, bfloat16, every parameter sharded over all ranks. `bound` is what no order and no buckets can
beat; behind a step stand the step over that bound, the exposed share of it, and the peak of memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from _bench import print_table

from counterpoint.capture.example_models import LLAMA_8B, Decoder, DecoderConfig, next_token_loss
from counterpoint.capture.fully_shard import fully_shard
from counterpoint.capture.graph import CapturedGraph
from counterpoint.capture.step import capture_step
from counterpoint.capture.world import fake_world
from counterpoint.cost.model import CostModel
from counterpoint.cost.presets import topology
from counterpoint.ir.groups import GroupTable
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.passes.registry import REGISTRY
from counterpoint.sim.least import least_bounds
from counterpoint.sim.simulator import simulate

LLAMA_70B = replace(LLAMA_8B, dim=8192, layers=80, heads=64, hidden=28672)
MODELS = {"8B/4": replace(LLAMA_8B, layers=4), "70B/2": replace(LLAMA_70B, layers=2)}
WORLDS = (8, 64, 512, 4096)
QUICK_WORLDS = (8, 64)
BUCKETING = "bucket-all-gather,bucket-reduce-scatter"
OVERLAP = "schedule-overlap"


def captured(config: DecoderConfig, world_size: int, tokens: int) -> CapturedGraph:
    """Forward and backward of a few layers."""
    with fake_world(world_size) as world:
        with torch.device("meta"):
            model = Decoder(config).to(torch.bfloat16)
            for layer in model.layers:
                fully_shard(layer, mesh=world.mesh())
            model = fully_shard(model, mesh=world.mesh())
            batch = torch.empty(1, tokens + 1, dtype=torch.int64)
        return capture_step(model, next_token_loss, batch)


def pipelines() -> dict[str, str]:
    """What is compared, as far as it is there."""
    found = {"as captured": "", "bucketed": BUCKETING}
    return found | ({"scheduled": OVERLAP} if OVERLAP in REGISTRY.names() else {})


def rows(worlds: tuple[int, ...], model: CostModel, tokens: int) -> Iterator[list[Any]]:
    """One row a model, world and pipeline."""
    for name, config in MODELS.items():
        for world_size in worlds:
            graph = captured(config, world_size, tokens)
            groups = GroupTable(graph.groups)
            bound_us = least_bounds(graph.gm, model, groups).step_us
            for what, pipeline in pipelines().items():
                gm, began = graph.gm, time.process_time()
                options = CompileOptions(verify="structural", on_error="raise")
                run_pipeline(gm, Pipeline.parse(pipeline), options=options, groups=groups, cost_model=model)
                passes_s, began = time.process_time() - began, time.process_time()
                step = simulate(gm, model, groups)
                took_s = time.process_time() - began
                collectives = sum(1 for _ in step.collectives)
                ratios = [step.step_us / bound_us, f"{step.exposed_us / step.step_us:.0%}", step.peak_bytes / 2**30]
                times = [bound_us / 1e3, step.compute_us / 1e3, step.step_us / 1e3]
                yield [name, world_size, what, collectives, *times, *ratios, passes_s, took_s]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small worlds only")
    parser.add_argument("--topology", default="h200x8-ib400")
    parser.add_argument("--tokens", type=int, default=4096, help="of each rank")
    asked = parser.parse_args()
    model = CostModel(topology=topology(asked.topology))
    columns = ["model", "ranks", "plan", "calls", "bound ms", "compute ms", "step ms", "step/bound", "exposed"]
    columns += ["peak GiB", "passes s", "simulate s"]
    worlds = QUICK_WORLDS if asked.quick else WORLDS
    print_table(f"simulated steps on {asked.topology}", columns, rows(worlds, model, asked.tokens))


if __name__ == "__main__":
    main()
