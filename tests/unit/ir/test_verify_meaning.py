"""Comparing with the reference: right rewrites pass, wrong ones are named. Each case is a function that builds a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node

from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.verify import Finding, Snapshot, verify

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
GROUPS = {"dp": range(4), "tp": range(2), "other": range(4)}
SHAPES = ((3, 4), (8,), (2, 2, 4))

Build = Callable[[GraphBuilder, list[Node]], list[Any]]


def graph(build: Build, shapes: tuple[tuple[Any, ...], ...] = SHAPES, dtype: torch.dtype = torch.float32) -> GraphModule:
    builder = GraphBuilder(GROUPS)
    inputs = [builder.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)]
    return builder.finish(*build(builder, inputs))


def compare(before: Build, after: Build, **options: Any) -> tuple[Finding, ...]:
    reference = Snapshot.of(graph(before, **options), groups=GROUPS)
    assert not reference.known
    return verify(graph(after, **options), reference=reference)


def codes(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.code for finding in findings}


# -- all-reduce -------------------------------------------------------------------------------------------------------


def ddp(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    return [b.all_reduce(b.call(aten.div.Tensor, x, 4), "sum", "dp") for x in xs]


def bucket(b: GraphBuilder, xs: list[Node], reduce: Callable[[Node], Node], order: tuple[int, ...] = (0, 1, 2)) -> list[Any]:
    parts = [b.call(aten.reshape.default, x, [-1]) for x in xs]
    reduced = reduce(b.call(aten.cat.default, parts))
    pieces = b.call(aten.split_with_sizes.default, reduced, [x.meta["val"].numel() for x in xs])
    outs = []
    for i, x in zip(order, xs, strict=True):
        piece = b.call(__import__("operator").getitem, pieces, i)
        outs.append(b.call(aten.view.default, piece, list(x.meta["val"].shape)))
    return outs


def scaled_then(b: GraphBuilder, op: str = "sum", group: str = "dp", by: float = 4) -> Callable[[Node], Node]:
    return lambda packed: b.all_reduce(b.call(aten.div.Tensor, packed, by), op, group)


def packed_with_copies(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    """A buffer of zeros filled by writes into its slices, reduced in place."""
    sizes = [x.meta["val"].numel() for x in xs]
    buffer = b.call(aten.empty.memory_format, [sum(sizes)])
    pieces = b.call(aten.split_with_sizes.default, buffer, sizes)
    import operator

    slices = [b.call(operator.getitem, pieces, i) for i in range(len(xs))]
    flat = [b.call(aten.view.default, x, [-1]) for x in xs]
    b.call(aten._foreach_copy_.default, slices, flat)
    b.call(aten.mul_.Tensor, buffer, 0.25)
    reduced = b.wait(b.call(c10d.all_reduce_.default, buffer, "sum", "dp"))
    outs, start = [], 0
    for x, size in zip(xs, sizes, strict=True):
        piece = b.call(aten.slice.Tensor, reduced, 0, start, start + size)
        outs.append(b.call(aten.view.default, piece, list(x.meta["val"].shape)))
        start += size
    return outs


def coalesced(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    import operator

    scaled = b.call(aten._foreach_div.Scalar, xs, 4)
    members = [b.call(operator.getitem, scaled, i) for i in range(len(xs))]
    started = b.call(c10d.all_reduce_coalesced.default, members, "sum", "dp")
    return [b.wait(b.call(operator.getitem, started, i)) for i in range(len(xs))]


def coalesced_in_place(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    import operator

    members = [b.call(aten.div.Tensor, x, 4) for x in xs]
    started = b.call(c10d.all_reduce_coalesced_.default, members, "sum", "dp")
    return [b.wait(b.call(operator.getitem, started, i)) for i in range(len(xs))]


def div_after(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    return [b.call(aten.mul.Tensor, b.all_reduce(x, "sum", "dp"), 0.25) for x in xs]


def average(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    return [b.all_reduce(x, "avg", "dp") for x in xs]


def scatter_then_gather(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    return bucket(b, xs, lambda p: b.all_gather(b.reduce_scatter(b.call(aten.div.Tensor, p, 4), "sum", "dp"), "dp"))


RIGHT_ALL_REDUCE = [
    ddp,
    lambda b, xs: bucket(b, xs, scaled_then(b)),
    packed_with_copies,
    coalesced,
    coalesced_in_place,
    div_after,
    average,
    scatter_then_gather,
]


@pytest.mark.parametrize("after", RIGHT_ALL_REDUCE)
def test_right_rewrites_of_gradient_reduction_pass(after: Build) -> None:
    assert compare(ddp, after) == ()


def mistake(number: int, wrong: Callable[[GraphBuilder, Node], Node]) -> Build:
    """The DDP graph, with a mistake in one member."""

    def build(b: GraphBuilder, xs: list[Node]) -> list[Any]:
        return [wrong(b, x) if i == number else b.all_reduce(b.call(aten.div.Tensor, x, 4), "sum", "dp") for i, x in enumerate(xs)]

    return build


def div4(b: GraphBuilder, x: Node) -> Node:
    return b.call(aten.div.Tensor, x, 4)


WRONG_ALL_REDUCE = {
    "group-changed": lambda b, xs: bucket(b, xs, scaled_then(b, group="other")),
    "reduce-op-changed": lambda b, xs: bucket(b, xs, scaled_then(b, op="max")),
    "divisor-changed": lambda b, xs: bucket(b, xs, scaled_then(b, by=2)),
    "value-moved": lambda b, xs: bucket(b, [xs[1], xs[0], xs[2]], scaled_then(b), order=(1, 0, 2)),
    "not-reduced": mistake(1, div4),
    "reduced-twice": mistake(1, lambda b, x: b.all_reduce(b.all_reduce(div4(b, x), "sum", "dp"), "sum", "dp")),
    "dtype-changed": mistake(
        1,
        lambda b, x: b.call(
            aten._to_copy.default,
            b.all_reduce(b.call(aten._to_copy.default, div4(b, x), dtype=torch.bfloat16), "sum", "dp"),
            dtype=torch.float32,
        ),
    ),
    "collective-changed": mistake(
        1,
        lambda b, x: b.wait(b.call(c10d.broadcast.default, div4(b, x), 0, "dp")),
    ),
}


@pytest.mark.parametrize("code", WRONG_ALL_REDUCE)
def test_wrong_rewrites_of_gradient_reduction_are_named(code: str) -> None:
    found = compare(ddp, WRONG_ALL_REDUCE[code])
    print(*found, sep="\n")
    assert code in codes(found)
    assert all(finding.is_error for finding in found)
