"""What a capture costs: time, nodes and collectives, for compiled graphs and whole steps, at world 8 and 1024.

python benchmarks/bench_capture.py [--layers 2] [--large]

Times are CPU seconds of this process, because the machine may be shared; each row is one capture, after one that warms
up torch's lazy imports. `--large` takes all 32 layers of Llama-8B for the last table.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from counterpoint.capture.compiled import capture_compiled
from counterpoint.capture.example_models import (
    LLAMA_8B,
    Decoder,
    DecoderConfig,
    next_token_loss,
    parallelize_decoder,
)
from counterpoint.capture.fully_shard import fully_shard
from counterpoint.capture.graph import CapturedGraph
from counterpoint.capture.replicate import replicate
from counterpoint.capture.step import capture_step
from counterpoint.capture.world import World, fake_world
from counterpoint.ir import ops

WORLDS = (8, 1024)
SHORT = {"all_gather": "AG", "reduce_scatter": "RS", "all_reduce": "AR", "broadcast": "BC", "all_to_all": "A2A"}


class Row(NamedTuple):
    """One capture."""

    model: str
    world: int
    what: str
    seconds: float
    graphs: list[CapturedGraph]


def replicated(config: DecoderConfig, _: World) -> nn.Module:
    """All-reduce of every gradient."""
    return replicate(Decoder(config), init_sync=False, broadcast_buffers=False)


def sharded(config: DecoderConfig, world: World) -> nn.Module:
    """Gather and reduce-scatter of every parameter; each layer is a unit."""
    model = Decoder(config)
    for layer in model.layers:
        fully_shard(layer, mesh=world.mesh())
    return fully_shard(model, mesh=world.mesh())


def tensor_parallel(config: DecoderConfig, world: World) -> nn.Module:
    """Tensor and sequence parallelism in groups of 8, replicated over the rest of the world."""
    if world.size == 8:
        return parallelize_decoder(Decoder(config), world.mesh())
    mesh = world.mesh(world.size // 8, 8, names=("data", "tensor"))
    model = parallelize_decoder(Decoder(config), mesh["tensor"])
    return replicate(model, device_mesh=mesh["data"], init_sync=False, broadcast_buffers=False)


BUILDERS: dict[str, Callable[[DecoderConfig, World], nn.Module]] = {
    "replicate": replicated,
    "fully_shard": sharded,
    "tensor parallel": tensor_parallel,
}


def tokens(config: DecoderConfig) -> torch.Tensor:
    """A batch without values."""
    return torch.empty(1, min(config.positions, 4096) + 1, dtype=torch.int64, device="meta")


def measure(config: DecoderConfig, name: str, size: int, what: str) -> Row:
    """One capture in a world of its own."""
    with fake_world(size) as world:
        with torch.device("meta"):
            model = BUILDERS[name](config, world)
        batch, start = tokens(config), time.process_time()
        if what == "compiled":
            graphs = capture_compiled(model, (batch[:, :-1],))
        else:
            optimizer = torch.optim.AdamW(model.parameters()) if what == "step + AdamW" else None
            graphs = [capture_step(model, next_token_loss, batch, optimizer=optimizer)]
        return Row(name, size, what, time.process_time() - start, list(graphs))


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Rows as a table, one line for each graph."""
    table = Table(title=title)
    for column in ("model", "world", "captured", "graph", "nodes", "collectives", "CPU s"):
        table.add_column(column, justify="right" if column in ("world", "nodes", "CPU s") else "left")
    for row in rows:
        for number, graph in enumerate(row.graphs):
            first = (row.model, str(row.world), row.what) if number == 0 else ("", "", "")
            seconds = f"{row.seconds:.1f}" if number == 0 else ""
            table.add_row(*first, graph.role, str(len(graph.gm.graph.nodes)), collectives(graph), seconds)
    Console(width=110).print(table)


def collectives(graph: CapturedGraph) -> str:
    """How many of each kind."""
    specs = (ops.spec_of(node.target) for node in graph.gm.graph.nodes if ops.is_collective(node))
    counts = Counter(spec.kind.value for spec in specs if spec is not None)
    return " ".join(f"{count} {SHORT.get(kind, kind)}" for kind, count in sorted(counts.items())) or "none"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--large", action="store_true", help="all 32 layers of Llama-8B in the last table")
    options = parser.parse_args()
    config = DecoderConfig(layers=options.layers, dim=512, heads=16, kv_heads=8, hidden=1024, vocabulary=4096)
    measure(replace(config, layers=1), "tensor parallel", 8, "compiled")
    measure(replace(config, layers=1), "tensor parallel", 8, "step + AdamW")
    rows = [
        measure(config, name, size, what)
        for name in BUILDERS
        for size in WORLDS
        for what in ("compiled", "step", "step + AdamW")
    ]
    print_table(f"decoder, {options.layers} layers, width 512", rows)
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    wide = replace(LLAMA_8B, layers=LLAMA_8B.layers if options.large else 2)
    large = [measure(wide, "fully_shard", 1024, what) for what in ("compiled", "step + AdamW")]
    print_table(f"Llama-8B width, {wide.layers} layers, meta device", large)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mib
    print(
        f"torch {torch.__version__}; peak memory grew by {grown:.0f} MiB over {before_mib:.0f} MiB for the last table"
    )


if __name__ == "__main__":
    main()
