"""What every collective means: pure functions from the tensors of all ranks of a group to the results of all ranks.

This is the reference that rewrites are compared with. It is written for clearness, not speed, and sums in rank order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from counterpoint.errors import EvaluationError
from counterpoint.ir.ops import Kind

PerRank = Sequence[Tensor]
Arguments = Mapping[str, Any]

_COMBINE: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "sum": torch.add,
        "avg": torch.add,
        "product": torch.mul,
        "min": torch.minimum,
        "max": torch.maximum,
        "band": torch.bitwise_and,
        "bor": torch.bitwise_or,
        "bxor": torch.bitwise_xor,
    }
)


def reduce(op: str, tensors: PerRank) -> Tensor:
    """The elementwise reduction of the ranks' tensors, in rank order."""
    combine = _COMBINE.get(op)
    if combine is None:
        raise EvaluationError(f"no reference semantics for reduce op {op!r}; known: {', '.join(_COMBINE)}")
    dtype = tensors[0].dtype
    # Eight-bit floats have no arithmetic of their own; a network backend widens them as well.
    wide = [t.float() if dtype.is_floating_point and dtype.itemsize == 1 else t for t in tensors]
    total = wide[0].clone()
    for tensor in wide[1:]:
        total = combine(total, tensor)
    return (total / len(tensors) if op == "avg" else total).to(dtype)


def _all_reduce(tensors: PerRank, a: Arguments) -> list[Tensor]:
    total = reduce(a["reduce_op"], tensors)
    return [total.clone() for _ in tensors]


def _all_gather(tensors: PerRank, _: Arguments) -> list[Tensor]:
    joined = torch.cat([t.reshape(1) if t.dim() == 0 else t for t in tensors])
    return [joined.clone() for _ in tensors]


def _reduce_scatter(tensors: PerRank, a: Arguments) -> list[Tensor]:
    total = reduce(a.get("reduce_op", "sum"), tensors)
    rows, rest = divmod(total.shape[0], len(tensors))
    if rest:
        raise EvaluationError(f"reduce-scatter of {total.shape[0]} rows over {len(tensors)} ranks leaves a rest")
    return [total[i * rows : (i + 1) * rows].clone() for i in range(len(tensors))]


def _all_to_all(tensors: PerRank, a: Arguments) -> list[Tensor]:
    if "gather_dim" in a:
        return _shard_dim_all_to_all(tensors, a["gather_dim"], a["shard_dim"])
    pieces = [t.split(list(sizes)) for t, sizes in zip(tensors, a["input_split_sizes"], strict=True)]
    return [torch.cat([sender[me] for sender in pieces]) for me in range(len(tensors))]


def _shard_dim_all_to_all(tensors: PerRank, gather_dim: int, shard_dim: int) -> list[Tensor]:
    pieces = [t.chunk(len(tensors), dim=shard_dim) for t in tensors]
    return [torch.cat([sender[me] for sender in pieces], dim=gather_dim) for me in range(len(tensors))]


def _broadcast(tensors: PerRank, a: Arguments) -> list[Tensor]:
    return [tensors[a["src"]].clone() for _ in tensors]


def _gather_matmul(tensors: PerRank, a: Arguments) -> list[tuple[Tensor | None, list[Tensor]]]:
    gathered = torch.cat(list(tensors), dim=a["gather_dim"])
    kept = gathered if a["return_A"] else None
    return [(kept, [gathered @ b for b in factors]) for factors in a["Bs"]]


def _matmul_scatter(tensors: PerRank, a: Arguments) -> list[Tensor]:
    total = reduce(a["reduce_op"], [t @ b for t, b in zip(tensors, a["B"], strict=True)])
    return [piece.clone() for piece in total.chunk(len(tensors), dim=a["scatter_dim"])]


MEANING: Mapping[Kind, Callable[[PerRank, Arguments], list[Any]]] = MappingProxyType(
    {
        Kind.ALL_REDUCE: _all_reduce,
        Kind.ALL_GATHER: _all_gather,
        Kind.REDUCE_SCATTER: _reduce_scatter,
        Kind.ALL_TO_ALL: _all_to_all,
        Kind.BROADCAST: _broadcast,
        Kind.GATHER_MATMUL: _gather_matmul,
        Kind.MATMUL_SCATTER: _matmul_scatter,
    }
)
"""Results by rank, given the payloads by rank and the arguments; arguments in `BY_RANK` come as one value a rank."""

BY_RANK = frozenset({"input_split_sizes", "output_split_sizes", "Bs", "B"})
"""Arguments that may differ between ranks."""
