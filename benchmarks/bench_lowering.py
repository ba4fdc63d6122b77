"""Lowered collectives in programs on the CPU: a tensor-parallel decode step, and what generated code allocates.

    python benchmarks/bench_lowering.py [--quick] [--ranks 2]

The step is a decoder's, split over the ranks: for each layer attention over a cache of its heads and a gated
feed-forward, each with an all-reduce behind it, for a few tokens at once. Inductor with gloo, our backend with gloo,
and our backend with `lower-collectives`, the default, take turns, step by step; a time is the median of the slowest
rank's.

The table of generated code counts, for a fixed set of small graphs, what a call allocates (buffers of generated code,
and results that operators make) and which of its kernels only copy, for inductor and for ours with and without the
pass.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from _bench import print_table
from torch import Tensor, nn

C10D = torch.ops._c10d_functional
Way = tuple[str, dict[str, Any]]
WAYS: Mapping[str, Way] = {
    "inductor": ("inductor", {}),
    "ours, gloo": ("counterpoint", {"lower": False}),
    "ours, lowered": ("counterpoint", {}),
}
"""Of a step: our default pipeline without and with the pass."""
CODE: Mapping[str, Way] = {
    "inductor": ("inductor", {}),
    "ours, gloo": ("counterpoint", {"passes": ""}),
    "ours, lowered": ("counterpoint", {"passes": "lower-collectives"}),
    "ours, default": ("counterpoint", {}),
}
"""Of generated code: our lowerings alone, and the pass alone."""


class Shape(NamedTuple):
    """A decoder, as far as one step of it goes."""

    layers: int
    width: int
    heads: int
    hidden: int
    context: int
    tokens: int


SHAPES = (
    Shape(8, 512, 8, 1536, 256, 1),
    Shape(8, 512, 8, 1536, 256, 8),
    Shape(4, 1024, 16, 2816, 512, 1),
    Shape(4, 1024, 16, 2816, 512, 16),
)


def summed(x: Tensor) -> Tensor:
    """The sum over the ranks."""
    started: Tensor = C10D.all_reduce(x, "sum", dist.group.WORLD.group_name)
    waited: Tensor = C10D.wait_tensor(started)
    return waited


class Layer(nn.Module):
    """One rank's part of a layer."""

    def __init__(self, shape: Shape, ranks: int) -> None:
        super().__init__()
        self.heads, self.of_head = shape.heads // ranks, shape.width // shape.heads
        own, hidden = self.heads * self.of_head, shape.hidden // ranks
        self.qkv = nn.Linear(shape.width, 3 * own, bias=False)
        self.out = nn.Linear(own, shape.width, bias=False)
        self.up, self.gate = (nn.Linear(shape.width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, shape.width, bias=False)
        self.norms = nn.ModuleList([nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)])
        cache = torch.randn(2, shape.tokens, self.heads, shape.context, self.of_head)
        self.keys, self.values = nn.Buffer(cache[0]), nn.Buffer(cache[1])

    def forward(self, x: Tensor) -> Tensor:
        """One token of each sequence."""
        q, k, v = self.qkv(self.norms[0](x)).view(x.shape[0], 3, self.heads, 1, self.of_head).unbind(1)
        keys, values = torch.cat([self.keys, k], 2), torch.cat([self.values, v], 2)
        seen = torch.softmax(q @ keys.transpose(2, 3) / self.of_head**0.5, -1) @ values
        x = x + summed(self.out(seen.view(x.shape[0], -1)))
        inner = self.norms[1](x)
        return x + summed(self.down(torch.nn.functional.silu(self.gate(inner)) * self.up(inner)))


def step_times(shape: Shape, repeats: int) -> dict[str, float]:
    """Milliseconds of a step, by way; the slowest rank's, the median over repeats."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(shape, dist.get_world_size()) for _ in range(shape.layers))).eval()
    x = torch.randn(shape.tokens, shape.width)
    torch.compiler.reset()
    steps = {name: torch.compile(model, backend=backend, options=options) for name, (backend, options) in WAYS.items()}
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    with torch.inference_mode():
        expected = model(x)
        for name, step in steps.items():
            assert torch.allclose(step(x), expected, rtol=1e-3, atol=1e-3), f"{name} computes something else"
        for _ in range(repeats):
            for name, step in steps.items():
                dist.barrier()
                began = time.perf_counter()
                step(x)
                times[name].append((time.perf_counter() - began) * 1e3)
    every = torch.tensor(list(times.values()))
    dist.all_reduce(every, dist.ReduceOp.MAX)
    return {name: statistics.median(row) for name, row in zip(times, every.tolist(), strict=True)}


# -- generated code ---------------------------------------------------------------------------------------------------


def _reduced(value: Tensor, op: str = "sum") -> Tensor:
    waited: Tensor = C10D.wait_tensor(C10D.all_reduce(value, op, dist.group.WORLD.group_name))
    return waited


def _gathered(value: Tensor) -> Tensor:
    group = dist.group.WORLD
    waited: Tensor = C10D.wait_tensor(C10D.all_gather_into_tensor(value, group.size(), group.group_name))
    return waited


def _scattered(value: Tensor) -> Tensor:
    group = dist.group.WORLD
    waited: Tensor = C10D.wait_tensor(C10D.reduce_scatter_tensor(value, "sum", group.size(), group.group_name))
    return waited


def _coalesced(values: list[Tensor]) -> list[Tensor]:
    return [C10D.wait_tensor(x) for x in C10D.all_reduce_coalesced(values, "sum", dist.group.WORLD.group_name)]


GRAPHS: Mapping[str, Callable[[Tensor, Tensor], Any]] = {
    "all_reduce of a product": lambda x, w: _reduced(x @ w) + 1,
    "all_reduce of what lives on": lambda x, w: (_reduced(y := x @ w), y),
    "all_reduce of an input": lambda x, w: _reduced(x) @ w,
    "all_reduce of pointwise work": lambda x, w: _reduced(torch.relu(x + w)) * 2,
    "all_reduce, transposed": lambda x, w: _reduced((x @ w).t()) * 2,
    "two all_reduces in a row": lambda x, w: _reduced(_reduced(x @ w) @ w) * 2,
    "all_reduce of a part": lambda x, w: _reduced((x @ w)[:8]) * 2,
    "all_gather": lambda x, w: _gathered(x @ w) * 2,
    "reduce_scatter": lambda x, w: _scattered(x @ w) * 2,
    "coalesced all_reduce": lambda x, w: _coalesced([x @ w, torch.relu(x)]),
}


def counted(code: str) -> tuple[int, int]:
    """What a call allocates, and how many of its kernels and calls only copy."""
    body = code[code.index("def call(") :]
    buffers = len(re.findall(r"= empty_strided\w*\(", body))
    # A collective or other operator that makes its result; those that end in `_` or `void` write into what there is.
    made = re.findall(r"^\s+buf\d+ = torch\.ops\.(\w+\.\w+)\.default\(", body, re.MULTILINE)
    results = sum(not name.endswith(("_", "wait_tensor", "void")) for name in made)
    kernels = re.findall(r"^\s+(cpp_fused\w*)\(", body, re.MULTILINE)
    copying = [name for name in kernels if re.fullmatch(r"cpp_fused_(_?(clone|copy|all_reduce|t|mm))+_?\d+", name)]
    return buffers + results, len(copying) + body.count(".copy_(")


def code_counts() -> dict[str, dict[str, tuple[int, int]]]:
    """For each graph and way, allocations and copies."""
    from torch._inductor.utils import run_and_get_code

    found: dict[str, dict[str, tuple[int, int]]] = {}
    for title, function in GRAPHS.items():
        for name, (backend, options) in CODE.items():
            torch.compiler.reset()
            compiled = torch.compile(function, backend=backend, options={**options, "fx_graph_cache": False})
            _, (code, *_) = run_and_get_code(compiled, torch.ones(16, 16), torch.ones(16, 16))
            found.setdefault(title, {})[name] = counted(code)
    return found


# -- running ----------------------------------------------------------------------------------------------------------


def rank_main(rank: int, world: int, store: str, quick: bool) -> None:
    """One rank; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    counts = code_counts()
    steps = {shape: step_times(shape, 15 if quick else 101) for shape in (SHAPES[:1] if quick else SHAPES)}
    if rank == 0:
        report(world, counts, steps)
    dist.destroy_process_group()


def report(
    world: int, counts: Mapping[str, Mapping[str, tuple[int, int]]], steps: Mapping[Shape, Mapping[str, float]]
) -> None:
    """Both tables."""
    rows = [
        [title, *(f"{made} / {copies}" for made, copies in by_way.values()), _verdict(by_way)]
        for title, by_way in counts.items()
    ]
    print_table("generated code: allocations / copies", ["graph", *WAYS, "ours <= inductor"], rows)
    machine = f"{world} ranks, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    print_table(
        f"decode step, {machine}: milliseconds, float32",
        ["layers x width, tokens", *WAYS, "inductor / lowered", "gloo / lowered"],
        [
            [
                f"{shape.layers} x {shape.width}, {shape.tokens}",
                *ms.values(),
                f"{ms['inductor'] / ms['ours, lowered']:.2f}x",
                f"{ms['ours, gloo'] / ms['ours, lowered']:.2f}x",
            ]
            for shape, ms in steps.items()
        ],
    )


def _verdict(by_way: Mapping[str, tuple[int, int]]) -> str:
    theirs = by_way["inductor"]
    return (
        "yes"
        if all(one <= other for ours in by_way.values() for one, other in zip(ours, theirs, strict=True))
        else "NO"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one shape, few repeats")
    parser.add_argument("--ranks", type=int, default=2)
    asked = parser.parse_args()
    if os.path.exists("/sys/class/net/lo"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (asked.ranks, os.path.join(folder, "store"), asked.quick), asked.ranks)


if __name__ == "__main__":
    main()
