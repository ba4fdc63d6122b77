"""How long simulating a step takes, from reading the graph to the finished timeline with its bounds.

    python benchmarks/bench_simulator.py [--quick] [--only "fsdp backward" ...]

Processor seconds, by number of nodes; linear growth has exponent 1. The columns in the middle say where the time goes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from _bench import SHAPES, growth_exponent, measure, print_table
from torch.fx import Graph

from counterpoint.cost.model import CostModel
from counterpoint.cost.presets import topology
from counterpoint.ir.alias import Hazards
from counterpoint.ir.groups import GroupTable
from counterpoint.schedule.work import read_work
from counterpoint.sim.bounds import bounds_of
from counterpoint.sim.simulator import simulate

GROUPS = GroupTable({"dp": tuple(range(8)), "tp": tuple(range(8))})
MODEL = CostModel(topology=topology("h200x8-ib400"))
NODES = (1000, 10_000, 50_000)
QUICK_NODES = (1000, 3000)
NODES_A_COLLECTIVE = 5


def bound(graph: Graph) -> float:
    """The lower bound alone."""
    work, hazards = read_work(graph, MODEL, GROUPS), Hazards.of(graph)
    return bounds_of(work, hazards.order_edges(graph.nodes)).step_us


def rows(sizes: tuple[int, ...], repeats: int, only: list[str]) -> Iterator[list[Any]]:
    """One row a graph and size."""
    for name, make in SHAPES.items():
        if only and name not in only:
            continue
        nodes: list[int] = []
        seconds: list[float] = []
        for size in sizes:
            graph = make(size // NODES_A_COLLECTIVE)
            simulate(graph, MODEL, GROUPS)
            done = measure(lambda graph=graph: simulate(graph, MODEL, GROUPS), repeats)
            shared = measure(lambda graph=graph: simulate(graph, MODEL, GROUPS, sharing=True), 1)
            bounds = measure(lambda graph=graph: bound(graph), 1)
            nodes.append(len(graph.nodes))
            seconds.append(done.seconds)
            slope = growth_exponent(nodes, seconds) if len(nodes) > 1 else "-"
            collectives = sum(1 for _ in done.result.collectives)
            yield [name, nodes[-1], collectives, done.seconds, slope, shared.seconds, bounds.seconds, done.held_mib]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small graphs only")
    parser.add_argument("--only", nargs="+", default=[], choices=list(SHAPES), help="these graphs alone")
    asked = parser.parse_args()
    sizes, repeats = (QUICK_NODES, 1) if asked.quick else (NODES, 3)
    columns = ["graph", "nodes", "collectives", "simulate s", "exponent", "sharing s", "work + bounds s", "MiB held"]
    print_table("simulator: processor seconds", columns, rows(sizes, repeats, asked.only))


if __name__ == "__main__":
    main()
