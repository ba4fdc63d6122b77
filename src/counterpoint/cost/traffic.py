"""Bytes that a node moves through memory, when pointwise neighbours share one kernel.

A generated kernel of pointwise operators reads what comes from outside once and writes what goes outside once; what
passes from one operator to the next stays in registers. So a value counts as traffic only where its maker or its
reader is not part of such a kernel. This is decided node by node from its neighbours, so the sum over a graph does not
depend on the order of its nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch.fx import Node

from counterpoint._torch import OpOverload, size_hint
from counterpoint.ir import effects, metadata

_REDUCTION = getattr(torch.Tag, "reduction", None)
_ATEN = torch.ops.aten


def _overloads(*packets: str) -> frozenset[OpOverload]:
    found = (getattr(_ATEN, name) for name in packets if hasattr(_ATEN, name))
    return frozenset(getattr(packet, overload) for packet in found for overload in packet.overloads())


_ALSO_POINTWISE = _overloads("_to_copy", "clone", "copy", "where", "fill", "full_like", "zeros_like", "ones_like")
_ALSO_REDUCTIONS = _overloads(
    "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm", "mean"
)
_PICK = _overloads("embedding", "index_select", "gather", "index")
"""They read of their table as much as they return."""
_ONLY_ALLOCATE = _overloads("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")


@cache
def is_pointwise(overload: OpOverload) -> bool:
    """Whether each element of the result needs only the elements at its place."""
    return torch.Tag.pointwise in overload.tags or overload in _ALSO_POINTWISE


@cache
def _takes_in(overload: OpOverload) -> bool:
    """Whether a kernel of this operator can compute pointwise operands on the way."""
    reduces = _REDUCTION is not None and _REDUCTION in overload.tags
    return is_pointwise(overload) or reduces or overload in _ALSO_REDUCTIONS


def traffic_bytes(node: Node, *, fuses: bool = True) -> int | None:
    """Bytes that the node reads and writes; None where a size is unknown."""
    if node.target in _ONLY_ALLOCATE:
        return 0
    written = _written(node, fuses)
    read = [_read(node, source, fuses) for source in node.all_input_nodes]
    if written is None or any(one is None for one in read):
        return None
    if node.target in _PICK:
        read = [min(one or 0, max(written, _nbytes(node) or 0)) for one in read]
    return written + sum(one or 0 for one in read)


def starts_kernel(node: Node, *, fuses: bool = True) -> bool:
    """Whether the node ends a kernel of its own: something of its result is written to memory."""
    return node.target not in _ONLY_ALLOCATE and not (fuses and _stays_inside(node))


def _written(node: Node, fuses: bool) -> int | None:
    return 0 if fuses and _stays_inside(node) else _nbytes(node)


def _stays_inside(node: Node) -> bool:
    """Whether every reader computes the node's value for itself, so that it never lies in memory."""
    if not _fusible(node, is_pointwise):
        return False
    readers = list(_readers(node))
    return bool(readers) and all(_fusible(reader, _takes_in) and _same_size(node, reader) for reader in readers)


def _read(node: Node, source: Node, fuses: bool) -> int | None:
    maker = _maker(source)
    inside = _fusible(maker, is_pointwise) and _fusible(node, _takes_in) and _same_size(maker, node)
    return 0 if fuses and inside else _nbytes(source)


def _fusible(node: Node, test: object) -> bool:
    pure = node.op == "call_function" and isinstance(node.target, OpOverload) and effects.is_plain(node.target)
    return pure and callable(test) and bool(test(node.target))


def _same_size(maker: Node, reader: Node) -> bool:
    """A kernel runs over one range of elements; a reduction's range is that of its operand."""
    if isinstance(reader.target, OpOverload) and not is_pointwise(reader.target):
        return True
    return _numel(maker) == _numel(reader)


def _readers(node: Node) -> Iterator[Node]:
    for user in node.users:
        if effects.is_view_like(user):
            yield from _readers(user)
        else:
            yield user


def _maker(node: Node) -> Node:
    while effects.is_view_like(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _numel(node: Node) -> int | None:
    sizes = [size_hint(tensor.numel()) for tensor in _tensors(node)]
    return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)


def _nbytes(node: Node) -> int | None:
    sizes = [size_hint(metadata.nbytes_of(tensor)) for tensor in _tensors(node)]
    return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)


def _tensors(node: Node) -> tuple[torch.Tensor, ...]:
    return metadata.tensors_of(node) if metadata.has_value(node) else ()
