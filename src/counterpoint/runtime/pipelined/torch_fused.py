"""Torch's own fused operators on symmetric memory, for the calls that they can run."""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoint._torch import register_operators
from counterpoint.cost.symmetric_memory import torch_gather_obstacle, torch_scatter_obstacle
from counterpoint.runtime.pipelined.gathers import Gather, ScaledFactor
from counterpoint.runtime.pipelined.scatters import Partial


def gather_obstacle(gather: Gather) -> str | None:
    """Why torch's operator cannot run the call; None where it can."""
    dtype = gather.shard.dtype
    return torch_gather_obstacle(
        dims=gather.shard.dim(),
        dim=gather.dim,
        left=gather.left,
        other_dims=[factor.other.dim() for factor in gather.factors],
        biases=any(factor.bias is not None for factor in gather.factors),
        converts=any(factor.out_dtype != dtype for factor in gather.factors),
        scaled=_is_scaled(gather),
    )


def scatter_obstacle(partial: Partial, dim: int) -> str | None:
    """The same for a reduction."""
    obstacle = torch_scatter_obstacle(
        dims=len(partial.shape),
        dim=dim,
        products=len(partial.lefts),
        right_dims=partial.rights[0].dim(),
        bias=partial.bias is not None,
        scaled=partial.scales is not None,
    )
    return "it converts no product" if obstacle is None and partial.dtype != partial.lefts[0].dtype else obstacle


def gather_matmul(gather: Gather, group: str) -> list[Tensor]:
    """The products, and the gathered operand where it is kept."""
    register_operators()
    others = [factor.other for factor in gather.factors]
    # Torch moves the gathered dim to the front, and wants what it then sends to lie in one piece.
    shard = gather.shard.movedim(gather.dim, 0).contiguous().movedim(0, gather.dim)
    dim = gather.dim + gather.shard.dim()
    if _is_scaled(gather):
        scaled = [factor for factor in gather.factors if isinstance(factor, ScaledFactor)]
        gathered, products = torch.ops.symm_mem.fused_all_gather_scaled_matmul.default(
            shard,
            others,
            gather.shard_scale,
            [factor.scale for factor in scaled],
            dim,
            group,
            [factor.bias for factor in scaled],
            [factor.result_scale for factor in scaled],
            [factor.out_dtype for factor in scaled],
            [factor.fast_accum for factor in scaled],
        )
    else:
        gathered, products = torch.ops.symm_mem.fused_all_gather_matmul.default(
            shard, others, dim, group, return_A=gather.keep
        )
    results = [product.contiguous() for product in products]
    return [*results, gathered.contiguous()] if gather.keep else results


def _is_scaled(gather: Gather) -> bool:
    return any(isinstance(factor, ScaledFactor) for factor in gather.factors)


def matmul_scatter(partial: Partial, dim: int, reduce_op: str, group: str) -> Tensor:
    """This rank's part of the reduced sum."""
    register_operators()
    left, right = partial.lefts[0], partial.rights[0]
    result: Tensor = torch.ops.symm_mem.fused_matmul_reduce_scatter.default(
        left, right, reduce_op, dim + left.dim(), group
    )
    return result.contiguous()
