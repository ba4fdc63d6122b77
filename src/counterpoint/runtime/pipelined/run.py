"""Each kind of call, by the lowering that is chosen for it."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from counterpoint.runtime.pipelined import choice, plain, point_to_point, shared, symmetric, torch_fused
from counterpoint.runtime.pipelined.choice import Lowering
from counterpoint.runtime.pipelined.gathers import Gather
from counterpoint.runtime.pipelined.scatters import Partial
from counterpoint.runtime.probe import PROBES
from counterpoint.runtime.shared_memory import workspace_of


def gather_matmul(gather: Gather, group: dist.ProcessGroup, operator: str) -> list[Tensor]:
    """The products, and the gathered operand where it is kept."""
    lowering = choice.for_gather(gather, PROBES.of(group, gather.shard.device))
    if lowering is Lowering.SHARED_MEMORY:
        return shared.gather_matmul(gather, workspace_of(group))
    if lowering is Lowering.TORCH_FUSED:
        return torch_fused.gather_matmul(gather, group.group_name)
    if lowering is Lowering.SYMMETRIC_MEMORY:
        return symmetric.gather_matmul(gather, group)
    if lowering is Lowering.MESSAGES:
        return point_to_point.gather_matmul(gather, group, operator)
    return plain.gather_matmul(gather, group)


def matmul_scatter(
    partial: Partial, dim: int, reduce_op: str, chunks: int, group: dist.ProcessGroup, operator: str
) -> Tensor:
    """This rank's part of the reduced sum."""
    lowering = choice.for_scatter(partial, dim, group.size(), PROBES.of(group, partial.device))
    if lowering is Lowering.SHARED_MEMORY:
        return shared.matmul_scatter(partial, dim, reduce_op, workspace_of(group))
    if lowering is Lowering.TORCH_FUSED:
        return torch_fused.matmul_scatter(partial, dim, reduce_op, group.group_name)
    if lowering is Lowering.SYMMETRIC_MEMORY:
        return symmetric.matmul_scatter(partial, dim, reduce_op, group)
    if lowering is Lowering.MESSAGES:
        return point_to_point.matmul_scatter(partial, dim, reduce_op, chunks, group, operator)
    return plain.matmul_scatter(partial, dim, reduce_op, group.size(), group)


def matmul_all_reduce(partial: Partial, reduce_op: str, chunks: int, group: dist.ProcessGroup) -> Tensor:
    """The reduced sum."""
    lowering = choice.for_all_reduce(partial, reduce_op, group.size(), PROBES.of(group, partial.device))
    if lowering is Lowering.SHARED_MEMORY:
        return shared.matmul_all_reduce(partial, reduce_op, workspace_of(group))
    if lowering is Lowering.MESSAGES:
        return point_to_point.matmul_all_reduce(partial, reduce_op, chunks, group, "matmul_all_reduce")
    return plain.matmul_all_reduce(partial, reduce_op, group)


def exchange_matmul(tensor: Tensor, part: Gather, group: dist.ProcessGroup, operator: str) -> list[Tensor]:
    """The products of what is received, and what is received where it is kept."""
    lowering = choice.for_exchange(tensor.shape, group.size(), PROBES.of(group, tensor.device))
    if lowering is Lowering.SHARED_MEMORY:
        return shared.exchange_matmul(tensor, part, workspace_of(group))
    if lowering is Lowering.MESSAGES:
        return point_to_point.exchange_matmul(tensor, part, group, operator)
    return plain.exchange_matmul(tensor, part, group)


def matmul_exchange(partial: Partial, chunks: int, group: dist.ProcessGroup, operator: str) -> Tensor:
    """This rank's parts of all ranks' sums."""
    lowering = choice.for_exchange(partial.shape, group.size(), PROBES.of(group, partial.device))
    if lowering is Lowering.SHARED_MEMORY:
        return shared.matmul_exchange(partial, workspace_of(group))
    if lowering is Lowering.MESSAGES:
        return point_to_point.matmul_exchange(partial, chunks, group, operator)
    return plain.exchange_tensor(partial.all(), group)
