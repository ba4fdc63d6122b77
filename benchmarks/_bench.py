"""What the benchmarks share: medians of repeats, memory growth, tables, and synthetic distributed graphs."""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from counterpoint.ir.build import GraphBuilder

C10D = torch.ops._c10d_functional
ATEN = torch.ops.aten
WORLD = 8


class Measured(NamedTuple):
    """What a function returned, and what it took."""

    result: Any
    seconds: float
    """Median of the processor time."""
    grown_mib: float
    """What the process grew by. Less than what is held where memory that was freed before is used again."""
    held_mib: float
    """What the interpreter's allocator says the result holds."""


def measure(make: Callable[[], Any], repeats: int = 3) -> Measured:
    """Run `make` a few times for its time, keeping the first result, and once more for its memory."""
    gc.collect()
    before = rss_bytes()
    began = time.process_time()
    result = make()
    times = [time.process_time() - began]
    grown = rss_bytes() - before
    for _ in range(repeats - 1):
        gc.collect()
        began = time.process_time()
        make()
        times.append(time.process_time() - began)
    return Measured(result, statistics.median(times), max(0, grown) / 2**20, held_mib(make))


def held_mib(make: Callable[[], Any]) -> float:
    """Memory that the result of `make` holds, by the interpreter's own count."""
    gc.collect()
    tracemalloc.start()
    result = make()
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del result
    return held / 2**20


def rss_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log(value) over log(size) between the last two sizes: 1 is linear, 2 quadratic."""
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table on the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(width=140).print(table)


class CheapBuilder(GraphBuilder):
    """Builds large graphs fast: every tensor is (64, 64), gathered (512, 64), and nodes of one shape share a value.

    Shared values are fine for reading and editing; they must not be traced through.
    """

    def __init__(self) -> None:
        super().__init__({"dp": range(WORLD), "tp": range(WORLD)})
        with self.fake_mode:
            self._small, self._large = torch.empty(64, 64), torch.empty(64 * WORLD, 64)

    def input(self, name: str, *_: Any, **__: Any) -> Node:
        """A placeholder."""
        return self._valued(self.graph.placeholder(name), self._small)

    def node(self, operator: Any, *args: Any, large: bool = False) -> Node:
        """A call whose value is looked up, not computed."""
        return self._valued(self.graph.call_function(operator, args), self._large if large else self._small)

    def communicate(self, operator: Any, *args: Any, large: bool = False) -> tuple[Node, Node]:
        """A start and its wait."""
        start = self.node(operator, *args, large=large)
        return start, self.node(C10D.wait_tensor.default, start, large=large)

    @staticmethod
    def _valued(node: Node, value: torch.Tensor) -> Node:
        node.meta["val"] = value
        return node


def ddp(collectives: int) -> Graph:
    """Backward of DDP: a chain of compute, off which gradients hang, each divided and reduced at once."""
    b = CheapBuilder()
    flow, weights = b.input("x"), [b.input(f"weight_{k}") for k in range(min(collectives, 64))]
    waits = []
    for k in range(collectives):
        flow = b.node(ATEN.mm.default, flow, weights[k % len(weights)])
        grad = b.node(ATEN.div.Tensor, b.node(ATEN.mm.default, flow, flow), WORLD)
        waits.append(b.communicate(C10D.all_reduce.default, grad, "sum", "dp")[1])
    b.graph.output((flow, *waits))
    return b.graph


def fsdp_forward(collectives: int) -> Graph:
    """Forward of FSDP: each layer gathers its shard and computes with it."""
    b = CheapBuilder()
    flow, shards = b.input("x"), [b.input(f"shard_{k}") for k in range(collectives)]
    for shard in shards:
        weight = b.communicate(C10D.all_gather_into_tensor.default, shard, WORLD, "dp", large=True)[1]
        flow = b.node(ATEN.relu.default, b.node(ATEN.mm.default, flow, weight))
    b.graph.output((flow,))
    return b.graph


def fsdp_backward(collectives: int) -> Graph:
    """Backward of FSDP: each layer gathers its shard again, and scatters its gradient."""
    b = CheapBuilder()
    flow, shards = b.input("x"), [b.input(f"shard_{k}") for k in range(collectives // 2)]
    grads = []
    for shard in shards:
        weight = b.communicate(C10D.all_gather_into_tensor.default, shard, WORLD, "dp", large=True)[1]
        flow = b.node(ATEN.mm.default, flow, weight)
        grad = b.node(ATEN.div.Tensor, b.node(ATEN.mm.default, flow, flow, large=True), WORLD, large=True)
        grads.append(b.communicate(C10D.reduce_scatter_tensor.default, grad, "sum", WORLD, "dp")[1])
    b.graph.output((flow, *grads))
    return b.graph


def tensor_parallel(collectives: int) -> Graph:
    """Tensor parallel: one chain, in which every all-reduce needs the one before."""
    b = CheapBuilder()
    flow, weight = b.input("x"), b.input("weight")
    for _ in range(collectives):
        partial = b.node(ATEN.mm.default, b.node(ATEN.relu.default, b.node(ATEN.mm.default, flow, weight)), weight)
        flow = b.communicate(C10D.all_reduce.default, partial, "sum", "tp")[1]
    b.graph.output((flow,))
    return b.graph


SHAPES: dict[str, Callable[[int], Graph]] = {
    "ddp": ddp,
    "fsdp forward": fsdp_forward,
    "fsdp backward": fsdp_backward,
    "tp": tensor_parallel,
}
"""Graphs of about five nodes a collective, by the name of what they look like."""
