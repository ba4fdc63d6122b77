"""Operators that pack tensors side by side and take them apart again, each as one node however many tensors there are.

    pack_rows([a, b], rows)        row r of the result holds row r of a, then row r of b
    unpack_rows(packed, rows, ..)  the same backwards; every result is a fresh tensor
    pack_parts([a, b], parts, n)   what a and b send to rank 0, then to rank 1, ...
    unpack_parts(packed, ..)       what came from rank 0, rank 1, ... sorted by tensor

Tensors of several element types travel as bytes. Packing copies anyway, so `dtype` lets it convert on the way.

They are plain tensor arithmetic that neither a process group nor a device stands behind, so they live here, with the
other things that a graph may hold, and are registered by whatever can write them into a graph or run one. Their
results share no storage with their arguments, and they need no gradient: graphs are rewritten behind autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from counterpoint._torch import register_fake_kernel, register_kernel

Size = Any
"""An int, or a symbolic one while shapes are computed."""

_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_SHAPES = "SymInt[] sizes, int[] dims, ScalarType[] dtypes"


def shapes_of(sizes: Sequence[Size], dims: Sequence[int]) -> list[list[Size]]:
    """Shapes that were written one after the other; `dims` says how long each is."""
    ends = list(accumulate(dims))
    return [list(sizes[end - count : end]) for end, count in zip(ends, dims, strict=True)]


def packed_dtype(dtypes: Sequence[torch.dtype], dtype: torch.dtype | None = None) -> torch.dtype:
    """The element type of a packed tensor: the one that is asked for, the common one, or bytes."""
    if dtype is not None:
        return dtype
    return dtypes[0] if len(set(dtypes)) == 1 else torch.uint8


def packed_numel(numels: Sequence[Size], dtypes: Sequence[torch.dtype], dtype: torch.dtype | None = None) -> Size:
    """How many elements a packed tensor has."""
    target = packed_dtype(dtypes, dtype)
    as_bytes = dtype is None and any(given is not target for given in dtypes)
    return sum(n * given.itemsize for n, given in zip(numels, dtypes, strict=True)) if as_bytes else sum(numels)


# -- what they compute ------------------------------------------------------------------------------------------------


def _pack_rows(values: Sequence[Tensor], rows: int, dtype: torch.dtype | None = None) -> Tensor:
    target = packed_dtype([value.dtype for value in values], dtype)
    cells = [_as(value.reshape(rows, -1), target, dtype) for value in values]
    return _beside(cells, target).reshape(-1)


def _pack_parts(values: Sequence[Tensor], parts: Sequence[int], ranks: int) -> Tensor:
    target = packed_dtype([value.dtype for value in values])
    pieces = [value.split(list(parts[i * ranks : (i + 1) * ranks])) for i, value in enumerate(values)]
    line = [_as(member[rank].reshape(1, -1), target) for rank in range(ranks) for member in pieces]
    return torch.cat(line, 1).reshape(-1)


def _unpack_rows(
    packed: Tensor, rows: int, sizes: Sequence[int], dims: Sequence[int], dtypes: Sequence[torch.dtype]
) -> list[Tensor]:
    results = _empty(packed, sizes, dims, dtypes)
    targets = [_as(result.view(rows, -1), packed.dtype) for result in results]
    widths = [target.shape[1] for target in targets]
    torch.split_with_sizes_copy(packed.reshape(rows, -1), widths, 1, out=targets)
    return results


def _unpack_parts(
    packed: Tensor,
    parts: Sequence[int],
    ranks: int,
    sizes: Sequence[int],
    dims: Sequence[int],
    dtypes: Sequence[torch.dtype],
) -> list[Tensor]:
    results = _empty(packed, sizes, dims, dtypes)
    pieces = [result.split(list(parts[i * ranks : (i + 1) * ranks])) for i, result in enumerate(results)]
    targets = [_as(member[rank].view(1, -1), packed.dtype) for rank in range(ranks) for member in pieces]
    torch.split_with_sizes_copy(packed.reshape(1, -1), [target.shape[1] for target in targets], 1, out=targets)
    return results


def _as(table: Tensor, target: torch.dtype, converted: torch.dtype | None = None) -> Tensor:
    """The table in another element type by its bytes; unless it is to be converted, which copying it will do."""
    if table.dtype is target or converted is not None:
        return table
    return table.contiguous().view(target)


def _beside(cells: Sequence[Tensor], target: torch.dtype) -> Tensor:
    if all(cell.dtype is target for cell in cells):
        return torch.cat(list(cells), 1)
    widths = [cell.shape[1] for cell in cells]
    packed = cells[0].new_empty((cells[0].shape[0], sum(widths)), dtype=target)
    slots = packed.split(widths, 1)
    for source in dict.fromkeys(cell.dtype for cell in cells):
        # One call for each pair of types: lists of mixed types are copied tensor by tensor on a GPU.
        same = [i for i, cell in enumerate(cells) if cell.dtype is source]
        torch.ops.aten._foreach_copy_.default([slots[i] for i in same], [cells[i] for i in same])
    return packed


def _empty(packed: Tensor, sizes: Sequence[Size], dims: Sequence[int], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    return [packed.new_empty(shape, dtype=dtype) for shape, dtype in zip(shapes_of(sizes, dims), dtypes, strict=True)]


# -- what they would compute, on fake tensors -------------------------------------------------------------------------


def _fake_pack_rows(values: Sequence[Tensor], rows: Size, dtype: torch.dtype | None = None) -> Tensor:
    dtypes = [value.dtype for value in values]
    total = packed_numel([prod(value.shape) for value in values], dtypes, dtype)
    return values[0].new_empty((total,), dtype=packed_dtype(dtypes, dtype))


def _fake_pack_parts(values: Sequence[Tensor], parts: Sequence[Size], ranks: int) -> Tensor:
    dtypes = [value.dtype for value in values]
    return values[0].new_empty(
        (packed_numel([prod(value.shape) for value in values], dtypes),), dtype=packed_dtype(dtypes)
    )


def _fake_unpack_rows(
    packed: Tensor, rows: Size, sizes: Sequence[Size], dims: Sequence[int], dtypes: Sequence[torch.dtype]
) -> list[Tensor]:
    return _empty(packed, sizes, dims, dtypes)


def _fake_unpack_parts(
    packed: Tensor,
    parts: Sequence[Size],
    ranks: int,
    sizes: Sequence[Size],
    dims: Sequence[int],
    dtypes: Sequence[torch.dtype],
) -> list[Tensor]:
    return _empty(packed, sizes, dims, dtypes)


def _register(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    qualified = f"counterpoint::{name}"
    torch.library.define(qualified, schema, tags=_TAGS)
    register_kernel(qualified, run)
    register_fake_kernel(qualified, fake)


_register("pack_rows", "(Tensor[] values, SymInt rows, ScalarType? dtype=None) -> Tensor", _pack_rows, _fake_pack_rows)
_register("unpack_rows", f"(Tensor packed, SymInt rows, {_SHAPES}) -> Tensor[]", _unpack_rows, _fake_unpack_rows)
_register("pack_parts", "(Tensor[] values, SymInt[] parts, int ranks) -> Tensor", _pack_parts, _fake_pack_parts)
_register(
    "unpack_parts",
    f"(Tensor packed, SymInt[] parts, int ranks, {_SHAPES}) -> Tensor[]",
    _unpack_parts,
    _fake_unpack_parts,
)

OPS = torch.ops.counterpoint
"""The operators: `OPS.pack_rows.default` and so on."""
