"""Writing torch's fused operators on symmetric memory, for the plans that inductor would write them for.

What inductor does not look at is looked at here: whether the operator's own code can run the call rightly.
"""

from __future__ import annotations

import importlib
import operator
from typing import Any, NamedTuple

import torch
from torch._inductor import inductor_prims
from torch.fx import Node

from counterpoint._torch import is_constant_sized, register_operators
from counterpoint.ir import metadata
from counterpoint.ir.edit import Transaction
from counterpoint.ir.reason import Refusal
from counterpoint.passes.emitting import GraphEmit
from counterpoint.passes.micro_pipeline.axes import is_fold, shape_of, source_of
from counterpoint.passes.micro_pipeline.forms import Form, stands
from counterpoint.passes.micro_pipeline.gathers import is_returned
from counterpoint.passes.micro_pipeline.layout import check_layout, shaped
from counterpoint.passes.micro_pipeline.outcome import Outcome, is_needed, product_results
from counterpoint.passes.micro_pipeline.products import Product, Scales
from counterpoint.passes.micro_pipeline.rewrite import (
    GatherPlan,
    Plan,
    ScatterPlan,
    write,
)
from counterpoint.passes.micro_pipeline.scatters import read_sent

ATEN = torch.ops.aten
LEAST_SUMMED = 1024
"""Inductor cuts the dimension that a matmul sums over only where each rank's part is as long as this."""


def symmetric_memory() -> Any:
    """Torch's module, with its operators registered."""
    register_operators()
    return importlib.import_module("torch.distributed._symmetric_memory")


def is_test_mode() -> bool:
    """Whether torch's operators stand for their plain sequences, as in its own tests."""
    return bool(getattr(symmetric_memory(), "_is_test_mode", False))


def write_plan(tx: Transaction, plan: Plan, outcome: Outcome) -> Node:
    """Torch's operator where inductor would write it and it can run the call; one of ours otherwise."""
    if isinstance(plan, GatherPlan) and _takes_gather(plan):
        return _write_gather(tx, plan, outcome)
    if isinstance(plan, ScatterPlan) and _takes_scatter(plan):
        return _write_scatter(tx, plan, outcome)
    return write(tx, plan, outcome)


def _is_enabled(group: str, tensor: Node) -> bool:
    module = symmetric_memory()
    if not module.is_symm_mem_enabled_for_group(group):
        return False
    return is_test_mode() or metadata.tensor_of(tensor).device.type == "cuda"


def _is_natural(form: Form, shape: tuple[Any, ...]) -> bool:
    """Whether the operand keeps the dimensions that the shard has."""
    return len(form.dims) == len(shape) and form.sizes() == shape and stands(form.dims)


def _is_plain(product: Product) -> bool:
    """Whether it is one of the two matmuls that inductor knows."""
    return product.node.target in (ATEN.mm.default, ATEN._scaled_mm.default)


def _tensor(value: Node) -> Any:
    return metadata.tensor_of(value)


# -- gathers ----------------------------------------------------------------------------------------------------------


def _takes_gather(plan: GatherPlan) -> bool:
    gather, form = plan.gather, plan.uses[0].form
    shape, dim, products = shape_of(gather.shard), gather.dim, [use.product for use in plan.uses]
    if not form.left or gather.hoisted or not all(map(_is_plain, products)) or not _is_natural(form, shape):
        return False
    folds = all(not use.via or (len(use.via) == 1 and is_fold(use.via[0])) for use in plan.uses)
    if not folds or not _is_enabled(gather.group, gather.shard):
        return False
    scales = products[0].scales
    if dim == len(shape) - 1:
        return isinstance(shape[-1], int) and shape[-1] >= LEAST_SUMMED and not _is_kept(plan) and scales is None
    if dim != 0 and not is_constant_sized(_tensor(gather.shard)):
        # Its results had to be copied into the old order of strides, which cannot be told apart here.
        return False
    return scales is None or _takes_scale(_tensor(scales.left), shape, dim, gather.ranks)


def _takes_scale(scale: torch.Tensor, shape: tuple[Any, ...], dim: int, ranks: int) -> bool:
    """Torch's operator takes one scale, or one a row of the gathered operand in its own dimensions."""
    whole = [size * ranks if place == dim else size for place, size in enumerate(shape)]
    return scale.numel() == 1 or list(scale.shape[:-1]) == whole[:-1]


def _is_kept(plan: GatherPlan) -> bool:
    matmuls = frozenset(use.product.node for use in plan.uses)
    return is_returned(plan.gather.start) or is_needed(plan.gather.result, matmuls)


def _write_gather(tx: Transaction, plan: GatherPlan, outcome: Outcome) -> Node:
    gather, dim = plan.gather, plan.gather.dim
    matmuls = [use.product.node for use in plan.uses]
    emit, kept = GraphEmit(tx, min(matmuls), plan.starts), _is_kept(plan)
    shard = gather.shard
    if dim != len(shape_of(shard)) - 1:
        restride = symmetric_memory().restride_A_shard_for_fused_all_gather_matmul
        shard = _restrided(emit, shard, restride(_tensor(shard), dim))
    call = _gather_call(emit, plan, shard, kept)
    results = emit(operator.getitem, call, 1)
    for index, matmul in enumerate(matmuls):
        made = emit.contiguous(emit(operator.getitem, results, index))
        outcome.results |= product_results(emit, matmul, made)
    if kept:
        gathered = emit.contiguous(emit(operator.getitem, call, 0))
        outcome.keep(gather.start, gather.result, check_layout(emit, gathered, gather.result))
    outcome.gone += [*matmuls, *(node for use in plan.uses for node in use.via), *gather.nodes]
    outcome.gone += [user for node in matmuls for user in node.users if user in outcome.results]
    return call


def _gather_call(emit: GraphEmit, plan: GatherPlan, shard: Node, kept: bool) -> Node:
    gather, dim = plan.gather, plan.gather.dim
    products = [use.product for use in plan.uses]
    others = [product.right for product in products]
    scales = [product.scales for product in products if product.scales is not None]
    if not scales:
        fused = torch.ops.symm_mem.fused_all_gather_matmul.default
        return emit(fused, shard, others, dim, gather.group, return_A=kept)
    return emit(
        torch.ops.symm_mem.fused_all_gather_scaled_matmul.default,
        shard,
        others,
        scales[0].left,
        [scale.right for scale in scales],
        dim,
        gather.group,
        [product.bias for product in products],
        [scale.result for scale in scales],
        [_tensor(product.node).dtype for product in products],
        [scale.fast_accum for scale in scales],
    )


def _restrided(emit: GraphEmit, value: Node, like: torch.Tensor) -> Node:
    return emit(inductor_prims.force_stride_order, value, like.stride())


# -- reductions -------------------------------------------------------------------------------------------------------


class _Whole(NamedTuple):
    """The product in the dimensions of which one is scattered."""

    shape: tuple[Any, ...]
    dim: int

    @property
    def is_last(self) -> bool:
        """Whether its columns are scattered."""
        return self.dim == len(self.shape) - 1


def _whole_product(plan: ScatterPlan) -> _Whole | None:
    """None where something else than one fold stands between the matmul and what brings its parts into order."""
    sent, matmul = read_sent(plan.scatter.start), plan.scatter.products[0].node
    if isinstance(sent, Refusal):
        return None
    folded = is_fold(sent.source) and source_of(sent.source) is matmul
    if sent.source is not matmul and not folded:
        return None
    shape = shape_of(sent.source)
    return _Whole(shape, sent.dim) if shape[-1] == shape_of(matmul)[-1] else None


def _takes_scatter(plan: ScatterPlan) -> bool:
    scatter, (first, *others) = plan.scatter, plan.scatter.products
    whole = _whole_product(plan) if scatter.ranks is not None and not others and _is_plain(first) else None
    if whole is None or scatter.out_dtype != first.out_dtype or not _is_enabled(scatter.group, first.left):
        return False
    if first.scales is None:
        return True
    scale = _tensor(first.scales.left)
    if whole.is_last or (scale.numel() != 1 and scale.shape[:-1] != _tensor(first.left).shape[:-1]):
        return False
    # Its code on CUDA takes each rank's rows as they follow each other in two dimensions, which is another part.
    return all(size == 1 for size in whole.shape[: whole.dim]) or is_test_mode()


def _write_scatter(tx: Transaction, plan: ScatterPlan, outcome: Outcome) -> Node:
    scatter, (product,), whole = plan.scatter, plan.scatter.products, _whole_product(plan)
    if whole is None:
        return write(tx, plan, outcome)
    emit = GraphEmit(tx, scatter.start, plan.starts)
    if product.scales is None:
        call = _scatter_call(emit, plan, whole)
    else:
        call = _scaled_scatter_call(emit, plan, whole, product.scales)
    outcome.keep(scatter.start, scatter.wait, check_layout(emit, emit.contiguous(call), scatter.wait))
    outcome.gone += [*scatter.nodes, product.node]
    return call


def _scatter_call(emit: GraphEmit, plan: ScatterPlan, whole: _Whole) -> Node:
    scatter, (product,) = plan.scatter, plan.scatter.products
    left = shaped(emit, product.left, (*whole.shape[:-1], shape_of(product.left)[-1]))
    like = symmetric_memory().restride_A_for_fused_matmul_reduce_scatter(_tensor(left), whole.dim)
    fused = torch.ops.symm_mem.fused_matmul_reduce_scatter.default
    return emit(fused, _restrided(emit, left, like), product.right, scatter.reduce_op, whole.dim, scatter.group)


def _scaled_scatter_call(emit: GraphEmit, plan: ScatterPlan, whole: _Whole, scales: Scales) -> Node:
    scatter, (product,) = plan.scatter, plan.scatter.products
    like = symmetric_memory().restride_A_for_fused_matmul_reduce_scatter(_tensor(product.left), 0)
    return emit(
        torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter.default,
        _restrided(emit, product.left, like),
        product.right,
        scales.left,
        scales.right,
        scatter.reduce_op,
        whole.dim,
        0,
        scatter.group,
        list(whole.shape),
        product.bias,
        scales.result,
        _tensor(product.node).dtype,
        scales.fast_accum,
    )
