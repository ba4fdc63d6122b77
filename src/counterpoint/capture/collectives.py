"""The collectives that the wrappers put into a graph, as plain functions and as differentiable ones.

Each function names a process group and never a rank, so that every rank traces the same graph. Lengths that differ
between ranks come from the tensor at hand: they differ only where a dimension does not divide evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

# In these dtypes a sum over many ranks stays in range, so the collective itself may average. In any other, the division
# is split in two, before and after, as torch's fully_shard does.
AVERAGED_IN_FLIGHT = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Ranks:
    """A process group by name, and how many ranks it has."""

    group: str
    size: int


@dataclass(frozen=True)
class Cut:
    """How one tensor lies on the ranks: in chunks along `dim`, as `torch.chunk` cuts; the last are short or empty."""

    dim: int
    length: int
    """Size of the whole tensor along `dim`."""
    ranks: Ranks

    @property
    def chunk(self) -> int:
        """Length of the first chunk; shorter ones are padded to it while they travel."""
        return -(-self.length // self.ranks.size)


@dataclass(frozen=True)
class Precision:
    """The dtype of a gathered parameter, and the one in which its gradient travels."""

    parameter: torch.dtype
    gradient: torch.dtype


def all_gather(piece: Tensor, cut: Cut) -> Tensor:
    """The whole tensor, of this rank's piece of it."""
    padded = _padded(piece, cut.dim, cut.chunk).contiguous()
    started = torch.ops._c10d_functional.all_gather_into_tensor(padded, cut.ranks.size, cut.ranks.group)
    whole = _waited(started)
    if cut.dim != 0:
        whole = whole.unflatten(0, (cut.ranks.size, -1)).movedim(0, cut.dim).flatten(cut.dim, cut.dim + 1)
    return _shortened(whole, cut.dim, cut.length)


def reduce_scatter(whole: Tensor, cut: Cut, length: int, op: str) -> Tensor:
    """This rank's piece, `length` long, of the reduction of everyone's `whole`."""
    padded = _padded(whole, cut.dim, cut.chunk * cut.ranks.size)
    if cut.dim != 0:
        padded = padded.unflatten(cut.dim, (cut.ranks.size, -1)).movedim(cut.dim, 0).flatten(0, 1)
    started = torch.ops._c10d_functional.reduce_scatter_tensor(padded.contiguous(), op, cut.ranks.size, cut.ranks.group)
    return _shortened(_waited(started), cut.dim, length)


def all_reduce(tensor: Tensor, ranks: Ranks, op: str) -> Tensor:
    """The reduction of everyone's `tensor`."""
    return _waited(torch.ops._c10d_functional.all_reduce(tensor.contiguous(), op, ranks.group))


def broadcast(tensor: Tensor, ranks: Ranks) -> Tensor:
    """The tensor that the first rank of the group holds."""
    return _waited(torch.ops._c10d_functional.broadcast(tensor.contiguous(), 0, ranks.group))


def mean_piece(gradient: Tensor, cut: Cut, length: int, replicas: Ranks | None) -> Tensor:
    """This rank's piece of the mean gradient over the ranks of the cut and, where there are some, their replicas."""
    before, op, after = _division(gradient.dtype, cut.ranks.size * (replicas.size if replicas else 1))
    if before != 1:
        gradient = gradient / before
    piece = reduce_scatter(gradient, cut, length, op)
    if replicas is not None:
        piece = all_reduce(piece, replicas, op)
    return piece if after == 1 else piece / after


def _division(dtype: torch.dtype, ranks: int) -> tuple[int, str, float]:
    """The divisor before the reduction, the reduction, and the divisor after it; together they make a mean."""
    if ranks == 1:
        return 1, "sum", 1
    if dtype in AVERAGED_IN_FLIGHT:
        return 1, "avg", 1
    before = 1
    while ranks % before == 0 and ranks / before > before:
        before *= 2
    return before, "sum", ranks / before


def _waited(started: Tensor) -> Tensor:
    result: Tensor = torch.ops._c10d_functional.wait_tensor(started)
    return result


def _padded(tensor: Tensor, dim: int, length: int) -> Tensor:
    missing = length - tensor.shape[dim]
    return tensor if missing == 0 else pad(tensor, [0, 0] * (tensor.ndim - 1 - dim) + [0, missing])


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # A cast to the same dtype returns its argument, and the compiler of torch 2.11 then takes the gradient for zero.
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _shortened(tensor: Tensor, dim: int, length: int) -> Tensor:
    return tensor if tensor.shape[dim] == length else tensor.narrow(dim, 0, length)


class GatherParameter(torch.autograd.Function):
    """A piece of a parameter in, the whole parameter out; backward, this rank's piece of the mean gradient."""

    @staticmethod
    def forward(ctx: Any, piece: Tensor, cut: Cut, replicas: Ranks | None, precision: Precision) -> Tensor:
        """Cast, then gather: what travels is already in the dtype of use."""
        ctx.cut, ctx.replicas, ctx.precision = cut, replicas, precision
        ctx.piece_length, ctx.piece_dtype = piece.shape[cut.dim], piece.dtype
        return all_gather(_cast(piece, precision.parameter), cut)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Cast, then reduce, then cast to the dtype of the parameter."""
        gradient = _cast(gradients[0], ctx.precision.gradient)
        piece = mean_piece(gradient, ctx.cut, ctx.piece_length, ctx.replicas)
        return _cast(piece, ctx.piece_dtype), None, None, None


class ReplicateParameter(torch.autograd.Function):
    """A parameter in, the same parameter out; backward, the mean of everyone's gradient."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, ranks: Ranks, precision: Precision) -> Tensor:
        """A view, so that the result is a node of the graph and not the leaf itself; or a cast."""
        ctx.ranks, ctx.precision, ctx.parameter_dtype = ranks, precision, parameter.dtype
        return _cast(parameter.view_as(parameter), precision.parameter)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Divide first and sum then, as DistributedDataParallel does."""
        gradient = _cast(gradients[0], ctx.precision.gradient) / ctx.ranks.size
        return _cast(all_reduce(gradient, ctx.ranks, "sum"), ctx.parameter_dtype), None, None
