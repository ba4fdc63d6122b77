"""The bodies of `counterpoint.passes.bodies` with the packing operators: a handful of nodes, however many members.

Members are converted while they are packed, and gathered or exchanged results are fresh tensors. Reductions only pack
this way; their results are views of one tensor, which costs nothing to make.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from counterpoint.ir.packing import OPS
from counterpoint.passes.bodies import C10D, Emit, Launched, Pack, Value, elements, exchange, gathered, row_sizes_of
from counterpoint.passes.bodies import total as sum_of


def packing_to(dtype: torch.dtype | None) -> Pack:
    """Packs with one operator; into an element type, or as it is."""
    return partial(_packed, dtype=dtype)


def _packed(emit: Emit, values: Sequence[Value], rows: int, dtype: torch.dtype | None) -> Value:
    return emit(OPS.pack_rows.default, list(values), rows, *([dtype] if dtype is not None else []))


def all_gather(
    emit: Emit,
    values: Sequence[Value],
    *,
    dtypes: Sequence[torch.dtype],
    group: Any,
    ranks: int,
    dtype: torch.dtype | None = None,
) -> Launched:
    """One all-gather; `dtypes` are what the members arrive in, `dtype` what they are converted to on the way."""
    shapes = [gathered(emit, value, ranks) for value in values]
    started = emit(C10D.all_gather_into_tensor.default, packing_to(dtype)(emit, values, 1), ranks, group)
    return Launched(
        (started,), lambda later, waited: _unpacked(later, OPS.unpack_rows.default, waited[0], [ranks], shapes, dtypes)
    )


def all_to_all(
    emit: Emit,
    values: Sequence[Value],
    *,
    sends: Sequence[Sequence[Any]],
    receives: Sequence[Sequence[Any]],
    group: Any,
) -> Launched:
    """One all-to-all; `sends[m][r]` rows of member m go to rank r, `receives[m][r]` rows come from it."""
    ranks, dtypes = len(sends[0]), [emit.dtype(value) for value in values]
    row_sizes = row_sizes_of(emit, values, dtypes)
    packed = emit(OPS.pack_parts.default, list(values), [part for member in sends for part in member], ranks)
    started = exchange(emit, packed, elements(emit, sends, row_sizes), elements(emit, receives, row_sizes), group)
    shapes = [[sum_of(emit, rows), *emit.shape(value)[1:]] for value, rows in zip(values, receives, strict=True)]
    parts = [part for member in receives for part in member]
    return Launched(
        (started,),
        lambda later, waited: _unpacked(later, OPS.unpack_parts.default, waited[0], [parts, ranks], shapes, dtypes),
    )


def _unpacked(
    emit: Emit,
    target: Any,
    packed: Value,
    how: list[Any],
    shapes: Sequence[Sequence[Any]],
    dtypes: Sequence[torch.dtype],
) -> list[Value]:
    sizes, dims = [size for shape in shapes for size in shape], [len(shape) for shape in shapes]
    made = emit(target, packed, *how, sizes, dims, list(dtypes))
    return [emit(operator.getitem, made, i) for i in range(len(shapes))]
