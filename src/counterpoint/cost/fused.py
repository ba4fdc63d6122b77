"""Work of operators that overlap a product with a collective: what they send, what they multiply, what it takes.

While the parts of the others travel, a rank multiplies what it has; so the longer of the two counts, and of the shorter
one the first or last part, which nothing overlaps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.fx import Node

from counterpoint._torch import size_hint
from counterpoint.ir import metadata, ops
from counterpoint.ir.ops import Kind

_BEHIND = frozenset({Kind.GATHER_MATMUL, Kind.EXCHANGE_MATMUL})
FUSED = _BEHIND | {Kind.MATMUL_SCATTER, Kind.MATMUL_REDUCE, Kind.MATMUL_EXCHANGE}
"""Kinds of operators with a product inside."""


class FusedWork(NamedTuple):
    """What one of them has to do, sizes by their hints."""

    nbytes: int
    """Of the whole tensor that is gathered, scattered or reduced."""
    flop: int
    dtype: torch.dtype


def fused_work(node: Node, ranks: int) -> FusedWork | None:
    """The work of a fused operator; None where a size is unknown or the operator is written in an unknown way."""
    spec = ops.spec_of(node.target)
    if spec is None or spec.kind not in FUSED or not metadata.has_value(node):
        return None
    # Operands are optional in some and nested in others; what does not fit is unknown and never an error.
    try:
        return _behind(node, ranks, spec.kind) if spec.kind in _BEHIND else _reduction(node, ranks, spec.kind)
    except (IndexError, TypeError, AttributeError):
        return None


def overlapped_us(network_us: float, product_us: float, ranks: int) -> float:
    """What the two take together when each rank's part is a piece of the pipeline."""
    return max(network_us, product_us) + min(network_us, product_us) / max(1, ranks)


def _behind(node: Node, ranks: int, kind: Kind) -> FusedWork:
    shard = metadata.tensor_of(_operands(node, "shard", "A", "tensor")[0])
    # What is exchanged keeps its size; what is gathered is every rank's.
    ranks = ranks if kind is Kind.GATHER_MATMUL else 1
    others = [metadata.tensor_of(other) for other in _operands(node, "others", "Bs")]
    left = bool(_optional(node, "gathered_left", True))
    nbytes = _hint(metadata.nbytes_of(shard)) * ranks
    # Each product has an element for every pair of rows and columns, and sums over what the operands share.
    gathered = _hint(shard.numel()) * ranks
    flop = sum(2 * gathered * _hint(other.shape[-1 if left else -2]) for other in others)
    return FusedWork(nbytes, flop, shard.dtype)


def _reduction(node: Node, ranks: int, kind: Kind) -> FusedWork:
    lefts = [metadata.tensor_of(left) for left in _operands(node, "lefts", "A")]
    rights = [metadata.tensor_of(right) for right in _operands(node, "rights", "B")]
    flop = sum(2 * _hint(left.numel()) * _hint(right.shape[-1]) for left, right in zip(lefts, rights, strict=True))
    result = metadata.tensors_of(node)[0]
    parts = ranks if kind is Kind.MATMUL_SCATTER else 1
    return FusedWork(_hint(metadata.nbytes_of(result)) * parts, flop, lefts[0].dtype)


def _operands(node: Node, *names: str) -> tuple[Node, ...]:
    """The nodes of the first of these arguments that the operator has."""
    known = ops.argument_names(node)
    return ops.tensors(node, tuple(name for name in names if name in known)[:1])


def _optional(node: Node, name: str, default: object) -> object:
    return ops.argument(node, name) if name in ops.argument_names(node) else default


def _hint(size: int | torch.SymInt) -> int:
    found = size_hint(size)
    if found is None:
        raise TypeError(f"{size} has no hint")
    return found
