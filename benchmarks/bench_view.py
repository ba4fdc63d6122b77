"""GraphView beside torch's BitsetAncestors: time to build, memory, and time of a question, on four kinds of graph.

    python benchmarks/bench_view.py [--quick]

Times are processor time, so that a busy machine does not change them much. Both answer "must this node run after that
one"; torch's from data edges only, ours also from conflicts over buffers, random draws and barriers. The last two
columns are ours over torch's.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from _bench import SHAPES, Measured, growth_exponent, measure, print_table
from torch.fx import Graph, Node

from counterpoint.ir.edit import GraphEditor
from counterpoint.ir.view import GraphView

SIZES = (100, 300, 1000, 3000, 10_000)
QUICK_SIZES = (100, 300, 1000)
QUESTIONS = 20_000


def torch_ancestors() -> Callable[[list[Node]], Any] | None:
    """torch's own structure; None where the installed torch does not have it (before 2.13)."""
    try:
        from torch._inductor.fx_passes.utils import BitsetAncestors
    except ImportError:
        return None
    return BitsetAncestors


def question_us(ask: Callable[[Node, Node], bool], nodes: list[Node], starts: list[Node]) -> float:
    """Microseconds for one question: does a random node depend on a random collective."""
    draw = random.Random(0)
    asked = [(draw.choice(nodes), draw.choice(starts)) for _ in range(QUESTIONS)]
    began = time.process_time()
    for node, start in asked:
        ask(node, start)
    return (time.process_time() - began) / QUESTIONS * 1e6


def compare(graph: Graph, collectives: int, peer: Callable[[list[Node]], Any] | None) -> tuple[list[Any], float, float]:
    """A row of the table, and the two building times."""
    nodes = list(graph.nodes)
    repeats = 5 if collectives <= 1000 else 3
    ours = measure(lambda: GraphView.of(graph), repeats)
    view: GraphView = ours.result
    starts = list(view.starts)
    ours_us = question_us(view.depends, nodes, starts)
    read = measure(lambda: GraphView.of(graph).collectives, 1)
    row = [collectives, len(nodes), ours.seconds, read.seconds, ours.held_mib, ours.grown_mib, ours_us]
    if peer is None:
        return [*row, *["-"] * 5], ours.seconds, float("nan")
    del view
    theirs = measure(lambda: peer(nodes), repeats)
    ancestors = theirs.result
    theirs_us = question_us(lambda node, start: ancestors.is_ancestor(start, node), nodes, starts)
    ratios = [ours.seconds / theirs.seconds, ours.held_mib / theirs.held_mib]
    return [*row, theirs.seconds, theirs.held_mib, theirs_us, *ratios], ours.seconds, theirs.seconds


def rows(make: Callable[[int], Graph], sizes: tuple[int, ...]) -> Iterator[list[Any]]:
    """One row a size, and the growth between the last two."""
    peer = torch_ancestors()
    ours, theirs = [], []
    for size in sizes:
        row, our_seconds, their_seconds = compare(make(size), size, peer)
        ours.append(our_seconds)
        theirs.append(their_seconds)
        yield row
    growth = ["growth", "", growth_exponent(sizes, ours), *[""] * 4, growth_exponent(sizes, theirs), *[""] * 4]
    yield growth


def merging(size: int) -> Iterator[list[Any]]:
    """Growing buckets of 25 collectives, and one of all: seconds for all decisions, and how many were refused."""
    for name, make in SHAPES.items():
        view = GraphView.of(make(size))
        for limit in (25, size):
            made: Measured = measure(lambda view=view, limit=limit: grow_buckets(view, limit))
            buckets, refused = made.result
            yield [name, limit, made.seconds, buckets, refused]


def grow_buckets(view: GraphView, limit: int) -> tuple[int, int]:
    """Merge collectives of one operator into buckets in graph order; returns buckets and refusals."""
    planner = view.merges()
    open_buckets: dict[Any, list[Node]] = {}
    buckets = refused = 0
    for start in view.starts:
        bucket = open_buckets.get(start.target)
        if bucket is not None and len(bucket) < limit and planner.try_merge((bucket[-1], start)) is None:
            bucket.append(start)
            continue
        refused += bucket is not None and len(bucket) < limit
        buckets += 1
        open_buckets[start.target] = [start]
    return buckets, refused


def editing(sizes: tuple[int, ...]) -> Iterator[list[Any]]:
    """One transaction a collective: move its wait to just before the output."""
    for size in sizes:
        for name in ("ddp", "fsdp backward"):
            graph = SHAPES[name](size)
            view = GraphView.of(graph)
            pairs = [(start, user) for start in view.starts for user in start.users]
            targets = [view.latest(wait) for _, wait in pairs]
            editor = GraphEditor(graph)
            editor.hazards()
            began = time.process_time()
            for (_, wait), target in zip(pairs, targets, strict=True):
                with editor.transaction("sink") as tx:
                    tx.move(wait, before=target)
            yield [name, size, (time.process_time() - began) / size * 1e6]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small graphs only")
    sizes = QUICK_SIZES if parser.parse_args().quick else SIZES
    ours = ["view s", "+read s", "MiB", "rss MiB", "ask us"]
    columns = ["collectives", "nodes", *ours, "torch s", "MiB", "ask us", "time x", "memory x"]
    for name, make in SHAPES.items():
        print_table(f"{name}: GraphView beside torch BitsetAncestors", columns, rows(make, sizes))
    print_table(
        f"merge planner, {sizes[-1]} collectives", ["graph", "bucket", "s", "buckets", "refused"], merging(sizes[-1])
    )
    print_table("editor, one wait sunk a transaction", ["graph", "collectives", "us each"], editing(sizes[-3:]))


if __name__ == "__main__":
    main()
