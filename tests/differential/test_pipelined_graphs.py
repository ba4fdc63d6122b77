"""Graphs that `micro-pipeline-tp` rewrites compute on real ranks what they did before."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from torch.fx import Node

from counterpoint._torch import torch_version
from counterpoint.ir.build import GraphBuilder
from tests.support.gloo import RanksByWorldSize
from tests.support.rewritten import check_on_ranks

ATEN = torch.ops.aten
ALWAYS = "micro-pipeline-tp{when=always chunks=3}"
ROWS = 5
"""Of each rank; three chunks do not divide them."""


def product(b: GraphBuilder, name: str, rows: int, columns: int) -> Node:
    left, right = b.input(f"{name}_left", (rows, 7)), b.input(f"{name}_right", (7, columns))
    return b.call(ATEN.mm.default, left, right)


def turned(b: GraphBuilder, value: Node) -> Node:
    return b.call(ATEN.permute.default, value, [1, 0])


def gradient_of_weights(b: GraphBuilder, ranks: int) -> Node:
    """As the backward pass writes it: `(x^T @ g)^T`, the operand a view too."""
    x, g = b.input("x", (6, 3)), b.input("g", (6, ROWS * ranks))
    return b.reduce_scatter(turned(b, b.call(ATEN.mm.default, turned(b, x), g)), "sum", "tp")


def layer(b: GraphBuilder, ranks: int) -> Node:
    x, weight = b.input("x", (3, 7)), b.input("weight", (ROWS * ranks, 7))
    return b.reduce_scatter(turned(b, b.call(ATEN.linear.default, x, weight)), "sum", "tp")


def turned_sum(b: GraphBuilder, ranks: int) -> Node:
    total = b.call(ATEN.add.Tensor, product(b, "a", 3, ROWS * ranks), product(b, "b", 3, ROWS * ranks))
    return b.reduce_scatter(turned(b, total), "avg" if ranks == 2 else "sum", "tp")


def columns(b: GraphBuilder, ranks: int) -> Node:
    """Scattered along the columns of the turned product."""
    parts = b.call(ATEN.split.Tensor, turned(b, product(b, "a", ROWS * ranks, 3)), ROWS, 1)
    pieces = [b.call(operator.getitem, parts, i) for i in range(ranks)]
    return b.reduce_scatter(b.call(ATEN.cat.default, pieces), "sum", "tp")


def converted(b: GraphBuilder, ranks: int) -> Node:
    value = b.call(ATEN._to_copy.default, turned(b, product(b, "a", 3, ROWS * ranks)), dtype=torch.float64)
    return b.reduce_scatter(value, "sum", "tp")


def reduced(b: GraphBuilder, ranks: int) -> Node:
    value = b.call(ATEN.clone.default, turned(b, product(b, "a", 3, 4)), memory_format=torch.contiguous_format)
    return b.all_reduce(value, "sum", "tp")


of_any_layout = pytest.mark.skipif(
    torch_version() < (2, 12), reason="before torch 2.12 the library gathers and scatters contiguous tensors alone"
)
SCATTERED_AS_THEY_LIE = [
    pytest.param(made, marks=of_any_layout) for made in (gradient_of_weights, layer, turned_sum, converted)
]


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("made", [*SCATTERED_AS_THEY_LIE, columns, reduced])
def test_turned_products_are_computed_from_turned_operands(
    ranks: RanksByWorldSize, world_size: int, made: Callable[[GraphBuilder, int], Node]
) -> None:
    builder = GraphBuilder({"tp": range(world_size)})
    gm = builder.finish(made(builder, world_size))
    rewritten = check_on_ranks(ranks, world_size, gm, builder, ALWAYS)
    assert rewritten.codes == ("pipelined",)
    assert rewritten.left == 1
