"""Nodes that give a tensor other dimensions: from how it is to how a pipelined operator takes it, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from counterpoint.ir import metadata
from counterpoint.ir.edit import EditRejected
from counterpoint.ir.reason import Refusal
from counterpoint.ir.verify.sizes import Size, product
from counterpoint.passes.emitting import GraphEmit
from counterpoint.passes.micro_pipeline.axes import RANKS, Axes, Axis, Group, flattened, is_fold, shape_of, source_of

ATEN = torch.ops.aten


def refined(axes: Axes, by: Group) -> Axes:
    """The axes, cut where those of `by` are."""
    return tuple(tuple(piece for axis in group for piece in _cut(axis, by)) for group in axes)


def _cut(axis: Axis, by: Group) -> list[Axis]:
    if axis in by or axis.dim == RANKS:
        return [axis]
    low, high = _number(axis.inner), _number(axis.inner) * _number(axis.size)
    inside = [a for a in by if a.dim == axis.dim and low <= _number(a.inner) and _number(a.inner * a.size) <= high]
    return sorted(inside, key=lambda piece: -_number(piece.inner))


def _number(size: Size) -> int:
    if not isinstance(size, int):
        raise EditRejected(Refusal("unknown-size", "", f"a dimension of {size} elements is cut"), "pipeline")
    return size


def turned(emit: GraphEmit, value: Node, have: Axes, want: Axes, *, packed: bool = False) -> Node:
    """The tensor with dimensions `have` as one with dimensions `want`; the axes are the same, in any order.

    packed: the result is contiguous.
    """
    order, wanted = flattened(have), flattened(want)
    if order != wanted:
        value = shaped(emit, value, [axis.size for axis in order])
        value = emit(ATEN.permute.default, value, [order.index(axis) for axis in wanted])
    value = shaped(emit, value, [product(axis.size for axis in group) for group in want])
    if packed and not metadata.tensor_of(value).is_contiguous():
        value = emit(ATEN.clone.default, value, memory_format=torch.contiguous_format)
    return value


def shaped(emit: GraphEmit, value: Node, sizes: Sequence[Size]) -> Node:
    """The tensor with these sizes; what was reshaped a moment ago is taken as it was before."""
    if shape_of(value) == tuple(sizes):
        return value
    if is_fold(value) and shape_of(source_of(value)) == tuple(sizes):
        return source_of(value)
    return emit(ATEN.reshape.default, value, _written(emit, value, sizes))


def _written(emit: GraphEmit, value: Node, sizes: Sequence[Size]) -> list[object]:
    """Sizes as arguments: numbers, sizes of the tensor itself, and one that is left to be worked out."""
    shape = shape_of(value)
    written: list[object] = []
    for size in sizes:
        if isinstance(size, int):
            written.append(size)
        elif size in shape:
            written.append(emit(ATEN.sym_size.int, value, shape.index(size)))
        elif -1 not in written:
            written.append(-1)
        else:
            raise EditRejected(Refusal("unknown-size", value.name, f"{list(shape)} to {list(sizes)}"), emit.tx.why)
    return written


def check_layout(emit: GraphEmit, new: Node, old: Node) -> Node:
    """The new node, where it stands in memory as the old one did: what comes behind may rely on that."""
    ours, theirs = metadata.tensor_of(new), metadata.tensor_of(old)
    if shape_of(new) != shape_of(old) or ours.dtype is not theirs.dtype or not _same_strides(ours, theirs):
        what = f"{list(theirs.shape)} by {theirs.stride()} would become {list(ours.shape)} by {ours.stride()}"
        raise EditRejected(Refusal("layout", old.name, what), emit.tx.why)
    return new


def _same_strides(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_contiguous() and other.is_contiguous():
        return True
    return all(size == 1 or a == b for size, a, b in zip(one.shape, one.stride(), other.stride(), strict=True))
