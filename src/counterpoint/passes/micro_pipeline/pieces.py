"""`cat` of equal pieces of one tensor, as functional collectives along another dimension than the first write it.

Only all pieces, in their order, each of them whole, count: a permuted or a partial list means something else.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from counterpoint.ir import metadata, ops
from counterpoint.ir.metadata import Size
from counterpoint.ir.verify.sizes import UndecidedError, divide, exact, tidy
from counterpoint.passes.micro_pipeline.axes import shape_of

ATEN = torch.ops.aten
SPLITS: frozenset[Any] = frozenset(
    {ATEN.split.Tensor, ATEN.split.sizes, ATEN.split_with_sizes.default, ATEN.chunk.default}
)
SLICES: frozenset[Any] = frozenset({ATEN.slice.Tensor, ATEN.narrow.default})
BYTES = ATEN.view.dtype


class Pieces(NamedTuple):
    """A tensor cut into equal pieces along one dimension, and these put together along another."""

    source: Node
    cut_dim: int
    joined_dim: int
    number: int
    nodes: tuple[Node, ...]
    """Everything between the source and the result, the result included."""
    through_bytes: bool
    """Each piece is read as another element type before they are joined."""


def is_join(node: Node) -> bool:
    """Whether the node puts tensors together."""
    return node.op == "call_function" and node.target is ATEN.cat.default


def pieces_of(joined: Node) -> Pieces | str:
    """The pieces that a `cat` joins, or what is wrong with them."""
    given: Sequence[Any] = ops.argument(joined, "tensors")
    if len(given) < 2 or not all(isinstance(piece, Node) for piece in given):
        return "it joins fewer than two tensors"
    casts = [piece for piece in given if piece.target is BYTES]
    if casts and len(casts) != len(given):
        return "some pieces are read as another element type, others are not"
    cut = [piece.all_input_nodes[0] for piece in casts] if casts else list(given)
    found = _of_split(cut) if cut[0].target is operator.getitem else _of_slices(cut)
    if isinstance(found, str):
        return found
    source, dim, between = found
    if any(len(node.users) != 1 for node in (*cut, *casts)):
        return "a piece is used by something else too"
    dims = len(shape_of(joined))
    nodes = (*between, *cut, *casts, joined)
    return Pieces(source, dim, ops.argument(joined, "dim") % dims, len(cut), nodes, bool(casts))


_Cut = tuple[Node, int, tuple[Node, ...]]


def _of_split(cut: Sequence[Node]) -> _Cut | str:
    split = cut[0].all_input_nodes[0]
    if split.target not in SPLITS or any(p.target is not operator.getitem or p.args[0] is not split for p in cut):
        return "it joins something else than the pieces of one tensor"
    pieces = metadata.value_of(split)
    if [piece.args[1] for piece in cut] != list(range(len(pieces))):
        return "the pieces stand in another order, or some are missing"
    if len(split.users) != len(cut):
        return "a piece is used by something else too"
    source = split.all_input_nodes[0]
    dim = ops.argument(split, "dim") % pieces[0].dim()
    # All but the last piece of `split(size)` and `chunk` are equal by definition.
    looked_at = pieces if split.target in (ATEN.split.sizes, ATEN.split_with_sizes.default) else (pieces[0], pieces[-1])
    if len({exact(piece.shape[dim]) for piece in looked_at}) != 1:
        return "the pieces differ in size"
    return source, dim, (split,)


def _of_slices(cut: Sequence[Node]) -> _Cut | str:
    source = cut[0].all_input_nodes[0] if cut[0].target in SLICES else None
    if source is None or any(piece.target not in SLICES or piece.args[0] is not source for piece in cut):
        return "it joins something else than the pieces of one tensor"
    shape = shape_of(source)
    dims = {ops.argument(piece, "dim") % len(shape) for piece in cut}
    if len(dims) != 1:
        return "the slices are cut along different dimensions"
    (dim,) = dims
    try:
        size = divide(shape[dim], len(cut))
    except UndecidedError:
        return "the slices differ in size"
    wanted = [(tidy(i * size), tidy((i + 1) * size)) for i in range(len(cut))]
    if [_bounds(piece, shape[dim]) for piece in cut] != wanted:
        return "the slices are not all of the tensor in its order"
    return source, dim, ()


def _bounds(piece: Node, length: Size) -> tuple[Size, Size] | None:
    """Where a slice begins and ends; None where it leaves elements out in between."""
    start = _number(ops.argument(piece, "start"))
    if piece.target is ATEN.narrow.default:
        return start, tidy(start + _number(ops.argument(piece, "length")))
    if ops.argument(piece, "step") != 1:
        return None
    end = _number(ops.argument(piece, "end"), length)
    beyond = isinstance(end, int) and (end >= length if isinstance(length, int) else end == 2**63 - 1)
    return start, length if beyond else end


def _number(value: Any, default: Size = 0) -> Any:
    """A bound as a size; one that a node computes as what the node computes."""
    if value is None:
        return default
    return exact(metadata.value_of(value) if isinstance(value, Node) else value)
