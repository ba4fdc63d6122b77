"""The calls of the pipelined operators of `counterpoint.ir.pipelined`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from counterpoint.ir import metadata
from counterpoint.ir.pipelined import OPS
from counterpoint.passes.emitting import GraphEmit
from counterpoint.passes.micro_pipeline.axes import shape_of
from counterpoint.passes.micro_pipeline.layout import shaped
from counterpoint.passes.micro_pipeline.products import Product, Scales

if TYPE_CHECKING:
    from counterpoint.passes.micro_pipeline.rewrite import GatherPlan, ScatterPlan

ATEN = torch.ops.aten


def gather_products(emit: GraphEmit, plan: GatherPlan, shard: Node, row_scale: Node | None, kept: bool) -> Node:
    """The products of the plan's matmuls with the gathered shard, and the gathered shard itself where it is kept."""
    products, form = [use.product for use in plan.uses], plan.uses[0].form
    others = [right_of(emit, product) if form.left else product.left for product in products]
    biases = [product.bias for product in products]
    along = (plan.chunks, plan.gather.ranks, plan.gather.group, kept)
    scales = [product.scales for product in products if product.scales is not None]
    dtypes = [_dtype(product) for product in products]
    if not scales:
        return emit(OPS.all_gather_matmul.default, shard, others, biases, dtypes, form.along, form.left, *along)
    return emit(
        OPS.all_gather_scaled_matmul.default,
        shard,
        row_scale if row_scale is not None else scales[0].left,
        others,
        [scale.right for scale in scales],
        biases,
        [scale.result for scale in scales],
        dtypes,
        [scale.fast_accum for scale in scales],
        form.along,
        *along,
    )


def scatter_products(emit: GraphEmit, plan: ScatterPlan, lefts: Sequence[Node]) -> Node:
    """The sum of the plan's products, reduced and scattered."""
    scatter = plan.scatter
    rights = [right_of(emit, product) for product in scatter.products]
    along = scatter.form.along if scatter.form is not None else 0
    ends = (plan.chunks, scatter.ranks, scatter.group)
    first = scatter.products[0]
    if first.scales is None:
        bias, dtype = _bias(scatter.products), scatter.out_dtype
        op = OPS.matmul_reduce_scatter.default
        return emit(op, list(lefts), rights, bias, scatter.reduce_op, along, *ends, dtype)
    scales: Scales = first.scales
    by_row = scales.left
    if metadata.tensor_of(by_row).numel() != 1:
        # Row scales have the rows of their operand, which are many dimensions here.
        by_row = shaped(emit, by_row, (*shape_of(lefts[0])[:-1], 1))
    return emit(
        OPS.scaled_matmul_reduce_scatter.default,
        list(lefts),
        rights,
        [by_row],
        [scales.right],
        first.bias,
        scales.result,
        scatter.reduce_op,
        along,
        scales.fast_accum,
        *ends,
        _dtype(first),
    )


def reduce_products(emit: GraphEmit, plan: ScatterPlan, lefts: Sequence[Node]) -> Node:
    """The sum of the plan's products, reduced."""
    scatter = plan.scatter
    rights = [right_of(emit, product) for product in scatter.products]
    bias, op = _bias(scatter.products), OPS.matmul_all_reduce.default
    return emit(op, list(lefts), rights, bias, scatter.reduce_op, plan.chunks, scatter.group, scatter.out_dtype)


def right_of(emit: GraphEmit, product: Product) -> Node:
    """The right operand as a matrix of columns."""
    return emit(ATEN.permute.default, product.right, [1, 0]) if product.right_turned else product.right


def _bias(products: Sequence[Product]) -> Node | None:
    return next((product.bias for product in products if product.bias is not None), None)


def _dtype(product: Product) -> torch.dtype:
    return metadata.tensor_of(product.node).dtype
