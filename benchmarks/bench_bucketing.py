"""Compile-time cost of DDP fusion and bucketing, beside inductor's on equal graphs in the same run; collectives left.

python benchmarks/bench_bucketing.py [--quick] [--sizes 100 1000] [--peer-up-to 1000] [--case ddp] [--cap 25] [--runs 3]

"pass" is our function of inductor's name, or, in the rows "custom", the pass as our default pipeline runs it, which
packs with operators of ours; inductor's stands beside it in its own default mode. "checked" is the pass in our pipeline
with its ledger and its verification. Parameters are 512x512 floats; medians. Inductor's pass for one large bucket takes
gigabytes, so it is asked only up to a size, and once where it takes longest.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from _bench import ATEN, C10D, growth_exponent, print_table, rss_bytes
from torch.fx import Graph, GraphModule, Node
from torch.nn import Module

from counterpoint import fake_world
from counterpoint.inductor.fx_passes import bucketing as our_bucketing
from counterpoint.inductor.fx_passes import ddp_fusion as our_fusion
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.collection import without_collection
from counterpoint.ir.edit import GraphEditor
from counterpoint.ir.fake import set_value
from counterpoint.ir.ops import is_collective
from counterpoint.options import CompileOptions
from counterpoint.passes.base import PassContext
from counterpoint.passes.book import LedgerBook
from counterpoint.passes.pipeline import Pipeline, run_pipeline

RANKS, WORLD = 8, "0"


# -- graphs -----------------------------------------------------------------------------------------------------------


class Builder(GraphBuilder):
    """Builds large graphs fast. What is sent has a value of its own, which inductor needs; the rest share one."""

    def __init__(self) -> None:
        super().__init__({WORLD: range(RANKS), "1": range(RANKS)})
        with self.fake_mode:
            self.part, self.whole = torch.empty(512, 512), torch.empty(RANKS * 512, 512)
            self.turned = self.whole.t()

    def sent(self, source: Node, whole: bool = False, dtype: torch.dtype = torch.float32) -> Node:
        """A gradient, divided."""
        with self.fake_mode:
            value = torch.empty_like(self.whole if whole else self.part, dtype=dtype)
        return set_value(self.graph.call_function(ATEN.div.Tensor, (source, RANKS)), value)

    def parameters(self, count: int) -> list[Node]:
        """Placeholders."""
        made = []
        for k in range(count):
            with self.fake_mode:
                made.append(set_value(self.graph.placeholder(f"p{k}"), torch.empty_like(self.part)))
        return made

    def node(self, operator: Any, *args: Any, like: torch.Tensor) -> Node:
        """A call with a value that others have too."""
        return set_value(self.graph.call_function(operator, args), like)

    def layer(self, flow: Node, weight: Node) -> Node:
        """Computes with a gathered parameter."""
        turned = self.node(ATEN.permute.default, weight, [1, 0], like=self.turned)
        return self.node(
            ATEN.add.Tensor, flow, self.node(ATEN.mm.default, turned, weight, like=self.part), like=self.part
        )

    def communicated(self, operator: Any, *args: Any, like: torch.Tensor) -> Node:
        """A start and its wait; the wait."""
        return self.node(C10D.wait_tensor.default, self.node(operator, *args, like=like), like=like)


def ddp(count: int) -> Graph:
    """A chain of matmuls, off which gradients hang; each is divided and reduced."""
    b = Builder()
    flow, waits = b.parameters(1)[0], []
    for _ in range(count):
        flow = b.node(ATEN.mm.default, flow, flow, like=b.part)
        grad = b.sent(b.node(ATEN.mm.default, flow, flow, like=b.part))
        waits.append(b.communicated(C10D.all_reduce.default, grad, "sum", WORLD, like=b.part))
    b.graph.output((flow, *waits))
    return b.graph


def fsdp_forward(count: int) -> Graph:
    """Each layer gathers its parameter and computes with it."""
    b = Builder()
    shards = b.parameters(count)
    flow = shards[0]
    for shard in shards:
        weight = b.communicated(C10D.all_gather_into_tensor.default, shard, RANKS, WORLD, like=b.whole)
        flow = b.layer(flow, weight)
    b.graph.output((flow,))
    return b.graph


def fsdp_backward(count: int) -> Graph:
    """Each layer gathers its parameter again and scatters its gradient: half of each."""
    b = Builder()
    shards, grads = b.parameters(count // 2), []
    flow = shards[0]
    for shard in shards:
        weight = b.communicated(C10D.all_gather_into_tensor.default, shard, RANKS, WORLD, like=b.whole)
        flow = b.layer(flow, weight)
        grad = b.sent(b.node(ATEN.mm.default, weight, flow, like=b.whole), whole=True)
        grads.append(b.communicated(C10D.reduce_scatter_tensor.default, grad, "sum", RANKS, WORLD, like=b.part))
    b.graph.output((flow, *grads))
    return b.graph


# -- passes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One pass on one kind of graph: what ours and inductor's are called."""

    title: str
    build: Callable[[int], Graph]
    function: str
    passes: str
    door: bool = True
    """Whether ours is the function of inductor's name; otherwise the pass."""


CASES = (
    Case("ddp, concat", ddp, "fuse_ddp_with_concat_op", "fuse-ddp{cap-mb=%s}"),
    Case("ddp, concat, custom", ddp, "fuse_ddp_with_concat_op", "fuse-ddp{cap-mb=%s method=custom}", door=False),
    Case("ddp, coalesced", ddp, "fuse_ddp_with_coalesced_op", "fuse-ddp{cap-mb=%s method=coalesced}"),
    Case("ddp, bucket", ddp, "bucket_all_reduce", "bucket-all-reduce{cap-mb=%s}"),
    Case("ddp, bucket, custom", ddp, "bucket_all_reduce", "bucket-all-reduce{cap-mb=%s mode=custom}", door=False),
    Case("fsdp forward", fsdp_forward, "bucket_all_gather", "bucket-all-gather{cap-mb=%s}"),
    Case(
        "fsdp forward, custom",
        fsdp_forward,
        "bucket_all_gather",
        "bucket-all-gather{cap-mb=%s mode=custom}",
        door=False,
    ),
    Case("fsdp backward", fsdp_backward, "bucket_reduce_scatter", "bucket-reduce-scatter{cap-mb=%s}"),
    Case(
        "fsdp backward, custom",
        fsdp_backward,
        "bucket_reduce_scatter",
        "bucket-reduce-scatter{cap-mb=%s mode=custom}",
        door=False,
    ),
)
CAPS_MB = (25, 2000)
ONCE_ABOVE = 1000
"""Of larger graphs, inductor's pass is run once: it takes up to minutes."""

Run = Callable[[], object]


@dataclass(frozen=True)
class Cost:
    """What a run took."""

    left: int
    seconds: float
    grown_mib: float


def cost(build: Callable[[int], Graph], size: int, prepare: Callable[[GraphModule], Run], runs: int = 1) -> Cost:
    """Run on fresh graphs; the median time, and the most that memory grew."""
    seconds, grown = [], [0.0]
    for _ in range(runs):
        gm = GraphModule(Module(), build(size))
        run = prepare(gm)
        gc.collect()
        before, began = rss_bytes(), time.process_time()
        run()
        seconds.append(time.process_time() - began)
        grown.append((rss_bytes() - before) / 2**20)
    return Cost(sum(map(is_collective, gm.graph.nodes)), median(seconds), max(grown))


def through_door(modules: tuple[Any, Any], function: str, cap_mb: int) -> Callable[[GraphModule], Run]:
    """A function of inductor's name, from the modules of bucketing and of fusion."""
    from torch._inductor.virtualized import V

    bucketing, fusion = modules
    if not function.startswith("fuse"):
        return lambda gm: partial(getattr(bucketing, function), gm, lambda _: cap_mb)

    def run(gm: GraphModule) -> None:
        mode = next(node.meta["val"].fake_mode for node in gm.graph.nodes if "val" in node.meta)
        with V.set_fake_mode(mode):
            getattr(fusion, function)(gm.graph, cap_mb)

    return lambda gm: partial(run, gm)


OPTIONS = CompileOptions(verify="structural", on_error="raise")
GROUPS = GraphBuilder({WORLD: range(RANKS), "1": range(RANKS)}).groups


def alone(passes: str) -> Callable[[GraphModule], Run]:
    """A pass of ours, without what the pipeline does before and after it."""
    (item,) = Pipeline.parse(passes).passes

    def prepare(gm: GraphModule) -> Run:
        page = LedgerBook.open(gm.graph, groups=GROUPS).page(item.text)
        editor = GraphEditor(gm.graph, GROUPS)
        context = PassContext(gm=gm, editor=editor, options=OPTIONS, groups=GROUPS, ledger=page)
        return without_collection()(partial(item.run, context))

    return prepare


def checked(passes: str) -> Callable[[GraphModule], Run]:
    """A pipeline of ours, as the backend runs it."""
    pipeline = Pipeline.parse(passes)
    return lambda gm: partial(run_pipeline, gm, pipeline, options=OPTIONS, groups=GROUPS, recompile=False)


def theirs() -> tuple[Any, Any]:
    """Inductor's modules."""
    from torch._inductor.fx_passes import bucketing, ddp_fusion

    return bucketing, ddp_fusion


def rows(
    cases: Sequence[Case], caps: Sequence[int], sizes: Sequence[int], peer_up_to: int, runs: int
) -> Iterator[list[Any]]:
    """One row a case, cap and size."""
    ours, peers = (our_bucketing, our_fusion), dict[tuple[str, int, int], Cost]()
    for case in cases:
        for cap in caps:
            times: list[float] = []
            for size in sizes:
                passes = case.passes % cap
                full = cost(case.build, size, checked(passes), runs)
                way = through_door(ours, case.function, cap) if case.door else alone(passes)
                own = cost(case.build, size, way, runs)
                times.append(own.seconds)
                slope = growth_exponent(sizes[: len(times)], times) if len(times) > 1 else "-"
                row = [case.title, cap, size, own.left, own.seconds, slope, own.grown_mib, full.seconds]
                if size <= peer_up_to:
                    once = size > ONCE_ABOVE or (cap > CAPS_MB[0] and size >= ONCE_ABOVE)
                    peer = peers.get((case.function, cap, size))
                    if peer is None:
                        way = through_door(theirs(), case.function, cap)
                        peer = peers[case.function, cap, size] = cost(case.build, size, way, 1 if once else runs)
                    ratios = [f"{peer.seconds / seconds:.1f}x" for seconds in (own.seconds, full.seconds)]
                    row += [peer.left, peer.seconds, peer.grown_mib, *ratios]
                yield row + ["-"] * (13 - len(row))


# -- how many are left ------------------------------------------------------------------------------------------------


def in_turn(groups: tuple[str, str], dtypes: tuple[torch.dtype, torch.dtype], ops: tuple[str, str]) -> Graph:
    """A hundred gradients whose groups, element types or reductions alternate."""
    b = Builder()
    (x,), waits = b.parameters(1), []
    for k in range(100):
        sent = b.sent(x, dtype=dtypes[k % 2])
        value = sent.meta["val"]
        waits.append(b.communicated(C10D.all_reduce.default, sent, ops[k % 2], groups[k % 2], like=value))
    b.graph.output(tuple(waits))
    return b.graph


def chains(roots: int, forks: int) -> Graph:
    """Reductions that each need an earlier one."""
    b = Builder()
    waits = []
    for x in b.parameters(roots):
        first = b.communicated(C10D.all_reduce.default, b.sent(x), "sum", WORLD, like=b.part)
        waits += [
            b.communicated(C10D.all_reduce.default, b.sent(first), "sum", WORLD, like=b.part) for _ in range(forks)
        ]
    b.graph.output(tuple(waits))
    return b.graph


_F32, _BF16 = (torch.float32,) * 2, (torch.float32, torch.bfloat16)
PUZZLES: dict[str, Callable[[], Graph]] = {
    "two groups in turn": lambda: in_turn((WORLD, "1"), _F32, ("sum", "sum")),
    "two element types in turn": lambda: in_turn((WORLD, WORLD), _BF16, ("sum", "sum")),
    "sum and maximum in turn": lambda: in_turn((WORLD, WORLD), _F32, ("sum", "max")),
    "two chains of two": lambda: chains(2, 1),
    "one root, two that need it": lambda: chains(1, 2),
}


def puzzle_rows() -> Iterator[list[Any]]:
    """Collectives before, and left by inductor's pass and by ours."""
    for title, build in PUZZLES.items():
        before = sum(map(is_collective, build().nodes))
        left = [
            cost(lambda _, make=build: make(), 0, through_door(modules, "bucket_all_reduce", 2000)).left
            for modules in (theirs(), (our_bucketing, our_fusion))
        ]
        yield [title, before, *left]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small graphs only")
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--peer-up-to", type=int, help="largest size at which inductor's pass runs too")
    parser.add_argument("--cap", type=int, action="append", help="in MB")
    parser.add_argument("--runs", type=int, help="on as many graphs each")
    parser.add_argument("--case", action="append", default=[], help="part of the first column")
    parser.add_argument("--only-cost", action="store_true", help="without the table of collectives left")
    asked = parser.parse_args()
    sizes = asked.sizes or ([100, 300] if asked.quick else [100, 300, 1000, 3000, 10000])
    peer_up_to = asked.peer_up_to if asked.peer_up_to is not None else (300 if asked.quick else 1000)
    runs = asked.runs or (1 if asked.quick else 3)
    chosen = [case for case in CASES if not asked.case or any(part in case.title for part in asked.case)]
    with fake_world(RANKS):
        if not asked.only_cost:
            print_table("collectives left", ["graph", "before", "inductor", "ours"], puzzle_rows())
        # The first runs of each import and compile what the others find ready.
        list(rows(chosen, [25], [30], 30, 1))
        columns = ["pass", "cap MB", "before", "left", "pass s", "exponent", "MiB", "checked s"]
        peer = ["left", "inductor s", "MiB", "to pass", "to checked"]
        made = rows(chosen, asked.cap or CAPS_MB, sizes, peer_up_to, runs)
        print_table("processor seconds", [*columns, *peer], made)


if __name__ == "__main__":
    main()
