"""The collective, then the matmul, as if nothing were pipelined: for what nothing better serves."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint.runtime.pipelined.arithmetic import as_sent
from counterpoint.runtime.pipelined.failures import failing_as
from counterpoint.runtime.pipelined.gathers import Gather, Products
from counterpoint.runtime.pipelined.scatters import Partial

_C10D = torch.ops._c10d_functional
_WAIT = _C10D.wait_tensor.default


def gather_tensor(tensor: Tensor, dim: int, ranks: int, group: dist.ProcessGroup) -> Tensor:
    """All ranks' tensors, one behind the other along a dim, contiguous."""
    with failing_as("all_gather", group):
        sent = as_sent(tensor.contiguous())
        line: Tensor = _WAIT(_C10D.all_gather_into_tensor.default(sent, ranks, group.group_name)).view(tensor.dtype)
    if dim % tensor.dim() == 0:
        return line
    return torch.cat(line.tensor_split(ranks), dim)


def gather_matmul(gather: Gather, group: dist.ProcessGroup) -> list[Tensor]:
    """The products, and the gathered operand where it is kept."""
    gathered = gather_tensor(gather.shard, gather.dim, gather.ranks, group)
    scale = gather.shard_scale
    if scale is not None and gather.scale_travels:
        scale = gather_tensor(scale, gather.dim, gather.ranks, group)
    products = Products(gather, scale)
    products.add_all(gathered)
    return [*products.results, gathered] if gather.keep else products.results


def matmul_scatter(partial: Partial, dim: int, reduce_op: str, ranks: int, group: dist.ProcessGroup) -> Tensor:
    """This rank's part of the reduced sum."""
    total = partial.all()
    if dim % total.dim():
        total = torch.cat(total.tensor_split(ranks, dim))
    with failing_as("reduce_scatter", group):
        result: Tensor = _WAIT(_C10D.reduce_scatter_tensor.default(total, reduce_op, ranks, group.group_name))
    return result


def matmul_all_reduce(partial: Partial, reduce_op: str, group: dist.ProcessGroup) -> Tensor:
    """The reduced sum."""
    total = partial.all()
    with failing_as("all_reduce", group):
        result: Tensor = _WAIT(_C10D.all_reduce.default(total, reduce_op, group.group_name))
    return result


def exchange_tensor(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """What every rank has for this one, in equal parts along dim 0."""
    sizes = [tensor.shape[0] // group.size()] * group.size()
    with failing_as("all_to_all", group):
        sent = as_sent(tensor.contiguous())
        result: Tensor = _WAIT(_C10D.all_to_all_single.default(sent, sizes, sizes, group.group_name))
    return result.view(tensor.dtype)


def exchange_matmul(tensor: Tensor, part: Gather, group: dist.ProcessGroup) -> list[Tensor]:
    """The products of what is received, and what is received where it is kept."""
    received, products = exchange_tensor(tensor, group), Products(part)
    products.add_all(received)
    return [*products.results, received] if part.keep else products.results
