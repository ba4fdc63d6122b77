"""The pipelined operators on fake tensors and on simulated ranks: shapes, strides, meaning, and what they refuse."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

from counterpoint.errors import OperatorError
from counterpoint.ir import metadata, ops
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.collective import read_collective
from counterpoint.ir.evaluate import evaluate
from counterpoint.ir.pipelined import OPS
from counterpoint.ir.products import from_end, is_summed, product_shape, scattered_shape
from counterpoint.ir.verify import verify

ATEN = torch.ops.aten
GROUPS = {"tp": range(2)}


def gather_call(builder: GraphBuilder, shard: Any, others: list[Any], dim: int = 0, **options: Any) -> Any:
    return builder.call(
        OPS.all_gather_matmul.default,
        shard,
        others,
        options.get("biases", [None] * len(others)),
        options.get("out_dtypes", [torch.float32] * len(others)),
        dim,
        options.get("left", True),
        2,
        2,
        "tp",
        options.get("keep", False),
    )


@pytest.mark.parametrize(
    ("shard", "other", "dim", "left", "expected"),
    [
        ((4, 8), (8, 6), 0, True, (8, 6)),
        ((4, 8), (16, 6), 1, True, (4, 6)),
        ((3, 4, 8), (8, 6), 1, True, (3, 8, 6)),
        ((3, 4, 8), (6, 8, 5), -3, True, (6, 4, 5)),
        ((8, 4), (5, 8), 1, False, (5, 8)),
        ((8, 4), (5, 16), 0, False, (5, 4)),
        ((8, 4), (3, 5, 8), -1, False, (3, 5, 8)),
    ],
)
def test_products_of_a_gathered_operand(shard, other, dim, left, expected) -> None:
    builder = GraphBuilder(GROUPS)
    x, y = builder.input("x", shard), builder.input("y", other)
    node = gather_call(builder, x, [y], dim, left=left, out_dtypes=[torch.bfloat16], keep=True)
    product, gathered = metadata.tensors_of(node)
    assert tuple(product.shape) == expected
    assert product.dtype == torch.bfloat16
    whole = list(shard)
    whole[dim] *= 2
    assert list(gathered.shape) == whole
    assert product.is_contiguous()
    assert gathered.is_contiguous()


def test_sizes_stay_symbolic() -> None:
    builder = GraphBuilder(GROUPS)
    rows = builder.symbol("rows", 8)
    x, y = builder.input("x", (rows, 4)), builder.input("y", (4, 6))
    (product,) = metadata.tensors_of(gather_call(builder, x, [y]))
    assert str(product.shape[0]) == f"2*{rows}"
    scattered = builder.call(OPS.matmul_reduce_scatter.default, [x], [y], None, "sum", 0, 1, 2, "tp")
    assert str(metadata.tensor_of(scattered).shape[0]) == f"({rows}//2)"


def test_they_are_collectives_that_need_no_wait() -> None:
    builder = GraphBuilder(GROUPS)
    x, y = builder.input("x", (4, 8)), builder.input("y", (8, 6))
    node = gather_call(builder, x, [y])
    collective = read_collective(node)
    assert collective.kind is ops.Kind.GATHER_MATMUL
    assert collective.group.name == "tp"
    assert not collective.spec.waits
    gm = builder.finish(builder.call(operator.getitem, node, 0))
    assert verify(gm.graph) == ()


def scaled(builder: GraphBuilder) -> dict[str, Any]:
    e4m3 = torch.float8_e4m3fn
    return {
        "a": builder.input("a", (4, 32), e4m3),
        "b": builder.input("b", (32, 16), e4m3, (1, 32)),
        "sa": builder.input("sa", (4, 1)),
        "sb": builder.input("sb", (1, 16)),
    }


def test_scaled_forms() -> None:
    builder = GraphBuilder(GROUPS)
    t = scaled(builder)
    bf16 = torch.bfloat16
    gathered = builder.call(
        OPS.all_gather_scaled_matmul.default,
        *(t["a"], t["sa"], [t["b"]], [t["sb"]], [None], [None], [bf16], [False], 0, 1, 2, "tp", False),
    )
    (product,) = metadata.tensors_of(gathered)
    assert (tuple(product.shape), product.dtype) == ((8, 16), bf16)
    scattered = builder.call(
        OPS.scaled_matmul_reduce_scatter.default,
        *([t["a"]], [t["b"]], [t["sa"]], [t["sb"]], None, None, "avg", 1, False, 1, 2, "tp", bf16),
    )
    assert tuple(metadata.tensor_of(scattered).shape) == (4, 8)


@pytest.mark.parametrize("fused", [OPS.matmul_reduce_scatter.default, OPS.matmul_all_reduce.default])
def test_other_reductions_are_refused_by_name(fused) -> None:
    builder = GraphBuilder(GROUPS)
    x, y = builder.input("x", (4, 8)), builder.input("y", (8, 6))
    how = (0, 1, 2, "tp") if fused is OPS.matmul_reduce_scatter.default else (1, "tp")
    with pytest.raises(OperatorError, match="reduce_op 'max'"):
        builder.call(fused, [x], [y], None, "max", *how)


def test_what_does_not_fit_is_refused() -> None:
    builder = GraphBuilder(GROUPS)
    x, y = builder.input("x", (5, 8)), builder.input("y", (8, 6))
    with pytest.raises(OperatorError, match="biases has 0 entries for 1 products"):
        gather_call(builder, x, [y], biases=[])
    with pytest.raises(OperatorError, match="cannot be scattered over 2 ranks"):
        builder.call(OPS.matmul_reduce_scatter.default, [x], [y], None, "sum", 0, 1, 2, "tp")
    with pytest.raises(OperatorError, match="no product"):
        builder.call(OPS.matmul_reduce_scatter.default, [], [], None, "sum", 0, 1, 2, "tp")
    with pytest.raises(OperatorError, match="do not fit"):
        gather_call(builder, x, [y], 1)
    with pytest.raises(OperatorError, match="dim 2 does not exist"):
        from_end(2, 2)
    with pytest.raises(OperatorError, match="cannot pipeline"):
        product_shape((2, 3, 4), (5, 2, 4, 6))
    with pytest.raises(OperatorError, match="dim 3"):
        scattered_shape((2, 4), 3, 2)


def test_which_dim_is_summed_over() -> None:
    assert [is_summed(dim, True) for dim in (-1, -2, -3)] == [True, False, False]
    assert [is_summed(dim, False) for dim in (-1, -2, -3)] == [False, True, False]


def counted(*shape: int, seed: int) -> torch.Tensor:
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


def test_meaning_on_simulated_ranks_is_that_of_the_plain_sequence() -> None:
    def plain(builder: GraphBuilder, x: Any, w: Any, b: Any) -> list[Any]:
        gathered = builder.all_gather(x, "tp")
        product = builder.call(ATEN.addmm.default, b, gathered, w)
        scattered = builder.reduce_scatter(builder.call(ATEN.mm.default, gathered, w), "avg", "tp")
        return [gathered, product, scattered, builder.all_reduce(builder.call(ATEN.mm.default, x, w), "sum", "tp")]

    def pipelined(builder: GraphBuilder, x: Any, w: Any, b: Any) -> list[Any]:
        node = gather_call(builder, x, [w], biases=[b], keep=True)
        product, gathered = (builder.call(operator.getitem, node, i) for i in range(2))
        scattered = builder.call(OPS.matmul_reduce_scatter.default, [gathered], [w], None, "avg", 0, 1, 2, "tp")
        reduced = builder.call(OPS.matmul_all_reduce.default, [x], [w], None, "sum", 1, "tp")
        return [gathered, product, scattered, reduced]

    inputs = [[counted(3, 4, seed=r), counted(4, 5, seed=9 + r), counted(5, seed=20 + r)] for r in range(2)]
    outcomes = []
    for build in (plain, pipelined):
        builder = GraphBuilder(GROUPS)
        operands = [builder.input(name, tuple(t.shape)) for name, t in zip("xwb", inputs[0], strict=True)]
        outcomes.append(evaluate(builder.finish(*build(builder, *operands)), inputs, builder.groups))
    torch.testing.assert_close(*outcomes, rtol=0, atol=0)
