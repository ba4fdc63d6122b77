"""What a merged collective consists of: pack, communicate, unpack, as plain functions.

Every function takes an `Emit`, which either runs an operator at once (`Eager`, on tensors) or adds a call to a graph
(the passes' emitter, on nodes). So the body that a test runs is the body that a pass writes. `launch` is what happens
up to the start, `finish` what happens from the wait on; a pass may place them apart. Sizes stay symbolic: they are
read through `emit.shape`, which gives the values of a graph where a size is not a constant.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

ATEN = torch.ops.aten
C10D = torch.ops._c10d_functional

Value = Any
"""A tensor, a node that computes one, or a list of either."""


class Emit(Protocol):
    """Runs or records operators."""

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Value: ...

    def shape(self, value: Value) -> tuple[Any, ...]:
        """The sizes of a tensor, as numbers or as values of the graph."""

    def dtype(self, value: Value) -> torch.dtype:
        """The element type of a tensor."""


Apply = Callable[[Emit, Value], Value]
"""Computes something elementwise of a value."""

Pack = Callable[[Emit, Sequence[Value], int], Value]
"""Puts values side by side into one flat tensor: row r of the result holds row r of each, all having so many rows."""


class Eager:
    """Runs each operator at once."""

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Value:
        return target(*args, **kwargs)

    def shape(self, value: torch.Tensor) -> tuple[Any, ...]:
        return tuple(value.shape)

    def dtype(self, value: torch.Tensor) -> torch.dtype:
        return value.dtype


@dataclass(frozen=True)
class Launched:
    """A merged collective on its way: what to wait for, and how to take the result apart."""

    started: tuple[Value, ...]
    unpack: Callable[[Emit, list[Value]], list[Value]]

    def finish(self, emit: Emit) -> list[Value]:
        """Wait, and give each member its result."""
        return self.unpack(emit, [emit(C10D.wait_tensor.default, start) for start in self.started])


def product(emit: Emit, sizes: Sequence[Any]) -> Any:
    """The product of sizes, folded where they are numbers."""
    known, total = 1, None
    for size in sizes:
        if isinstance(size, int):
            known *= size
        else:
            total = size if total is None else emit(operator.mul, total, size)
    if total is None:
        return known
    return total if known == 1 else emit(operator.mul, total, known)


def quotient(emit: Emit, size: Any, divisor: int) -> Any:
    """A size divided by a number that divides it."""
    return size // divisor if isinstance(size, int) else emit(operator.floordiv, size, divisor)


def cast(emit: Emit, value: Value, dtype: torch.dtype) -> Value:
    """The value in an element type; itself where it has that."""
    return value if emit.dtype(value) is dtype else emit(ATEN._to_copy.default, value, dtype=dtype)


def concatenated(emit: Emit, values: Sequence[Value], rows: int) -> Value:
    """Packs with torch's own operators, one call for each value and one for all."""
    if rows == 1:
        return emit(ATEN.cat.default, [emit(ATEN.reshape.default, value, [-1]) for value in values])
    parts = [emit(ATEN.reshape.default, value, [rows, -1]) for value in values]
    return emit(ATEN.reshape.default, emit(ATEN.cat.default, parts, 1), [-1])


def _take_apart(emit: Emit, flat: Value, sizes: list[Any], shapes: list[list[Any]]) -> list[Value]:
    parts = emit(ATEN.split_with_sizes.default, flat, sizes)
    return [emit(ATEN.reshape.default, emit(operator.getitem, parts, i), shape) for i, shape in enumerate(shapes)]


def _unchanged(_: Emit, value: Value) -> Value:
    return value


def all_reduce(
    emit: Emit,
    values: Sequence[Value],
    *,
    reduce_op: str,
    group: Any,
    pack: Pack = concatenated,
    before: Apply = _unchanged,
    after: Apply = _unchanged,
) -> Launched:
    """One all-reduce of everything side by side. `before` and `after` are applied to the whole."""
    shapes = [list(emit.shape(value)) for value in values]
    sizes = [product(emit, shape) for shape in shapes]
    started = emit(C10D.all_reduce.default, before(emit, pack(emit, values, 1)), reduce_op, group)
    return Launched((started,), lambda later, waited: _take_apart(later, after(later, waited[0]), sizes, shapes))


def reduce_scatter(
    emit: Emit,
    values: Sequence[Value],
    *,
    reduce_op: str,
    group: Any,
    ranks: int,
    pack: Pack = concatenated,
    after: Apply = _unchanged,
) -> Launched:
    """One reduce-scatter whose row r holds what goes to rank r. `after` is applied to the whole."""
    shapes = [_scattered(emit, value, ranks) for value in values]
    sizes = [product(emit, shape) for shape in shapes]
    started = emit(C10D.reduce_scatter_tensor.default, pack(emit, values, ranks), reduce_op, ranks, group)
    return Launched((started,), lambda later, waited: _take_apart(later, after(later, waited[0]), sizes, shapes))


def _scattered(emit: Emit, value: Value, ranks: int) -> list[Any]:
    first, *rest = emit.shape(value)
    return [quotient(emit, first, ranks), *rest]


def gathered(emit: Emit, value: Value, ranks: int) -> list[Any]:
    """The shape of a value after gathering it along its first dimension."""
    first, *rest = emit.shape(value)
    return [product(emit, [first, ranks]), *rest]


def all_gather(
    emit: Emit, values: Sequence[Value], *, dtypes: Sequence[torch.dtype], group: Any, ranks: int
) -> Launched:
    """One all-gather of everything side by side; as bytes where the element types differ."""
    sent = [cast(emit, value, dtype) for value, dtype in zip(values, dtypes, strict=True)]
    shapes = [gathered(emit, value, ranks) for value in sent]
    mixed = len(set(dtypes)) > 1
    flat = [emit(ATEN.reshape.default, value, [-1]) for value in sent]
    if mixed:
        flat = [emit(ATEN.view.dtype, value, torch.uint8) for value in flat]
    sizes = [emit.shape(value)[0] for value in flat]
    packed = emit(ATEN.cat.default, flat)
    started = emit(C10D.all_gather_into_tensor.default, packed, ranks, group)

    def unpack(later: Emit, waited: list[Value]) -> list[Value]:
        rows = later(ATEN.reshape.default, waited[0], [ranks, -1])
        parts = later(ATEN.split_with_sizes.default, rows, sizes, 1)
        taken = [later(operator.getitem, parts, i) for i in range(len(sizes))]
        if mixed:
            taken = [_from_bytes(later, part, dtype) for part, dtype in zip(taken, dtypes, strict=True)]
        return [later(ATEN.reshape.default, part, shape) for part, shape in zip(taken, shapes, strict=True)]

    return Launched((started,), unpack)


def _from_bytes(emit: Emit, part: Value, dtype: torch.dtype) -> Value:
    # A slice of the packed bytes may start at any address; only a copy of it is sure to be aligned for its type.
    own = emit(ATEN.clone.default, part, memory_format=torch.contiguous_format)
    return emit(ATEN.view.dtype, emit(ATEN.reshape.default, own, [-1]), dtype)


def item_sizes(dtypes: Sequence[torch.dtype]) -> list[int]:
    """How many elements of the packed tensor an element of each value takes: its bytes where element types differ."""
    return [dtype.itemsize if len(set(dtypes)) > 1 else 1 for dtype in dtypes]


def coalesced(emit: Emit, values: Sequence[Value], target: Any, *arguments: Any, after: Apply = _unchanged) -> Launched:
    """One call of a coalesced operator: nothing is copied, the backend groups the transfers. `after` takes the list."""
    made = emit(target, list(values), *arguments)
    started = tuple(emit(operator.getitem, made, i) for i in range(len(values)))
    return Launched(started, after)


def all_to_all(
    emit: Emit,
    values: Sequence[Value],
    *,
    sends: Sequence[Sequence[Any]],
    receives: Sequence[Sequence[Any]],
    group: Any,
) -> Launched:
    """One all-to-all in which each rank sends another what all members send it, side by side.

    `sends[m][r]` rows of member m go to rank r, `receives[m][r]` rows come from it. As bytes where types differ.
    """
    ranks, dtypes = len(sends[0]), [emit.dtype(value) for value in values]
    row_sizes = row_sizes_of(emit, values, dtypes)
    pieces = [_pieces(emit, value, sizes, dtypes) for value, sizes in zip(values, sends, strict=True)]
    packed = emit(ATEN.cat.default, [member[rank] for rank in range(ranks) for member in pieces])
    received = elements(emit, receives, row_sizes)
    started = exchange(emit, packed, elements(emit, sends, row_sizes), received, group)
    rests = [list(emit.shape(value)[1:]) for value in values]
    rows = [total(emit, sizes) for sizes in receives]

    def unpack(later: Emit, waited: list[Value]) -> list[Value]:
        order = [member[rank] for rank in range(ranks) for member in received]
        parts = later(ATEN.split_with_sizes.default, waited[0], order)
        results = []
        for index, rest in enumerate(rests):
            own = [later(operator.getitem, parts, rank * len(rests) + index) for rank in range(ranks)]
            joined = later(ATEN.cat.default, own)
            if later.dtype(joined) is not dtypes[index]:
                joined = later(ATEN.view.dtype, joined, dtypes[index])
            results.append(later(ATEN.reshape.default, joined, [rows[index], *rest]))
        return results

    return Launched((started,), unpack)


def _pieces(emit: Emit, value: Value, sizes: Sequence[Any], dtypes: Sequence[torch.dtype]) -> list[Value]:
    parts = emit(ATEN.split_with_sizes.default, value, list(sizes))
    flat = [emit(ATEN.reshape.default, emit(operator.getitem, parts, i), [-1]) for i in range(len(sizes))]
    return [emit(ATEN.view.dtype, part, torch.uint8) for part in flat] if len(set(dtypes)) > 1 else flat


def exchange(emit: Emit, packed: Value, sent: list[list[Any]], received: list[list[Any]], group: Any) -> Value:
    """Start the all-to-all of what is packed, given how much of each member goes to and comes from each rank."""
    ranks = range(len(sent[0]))
    ins, outs = ([total(emit, [member[rank] for member in table]) for rank in ranks] for table in (sent, received))
    return emit(C10D.all_to_all_single.default, packed, outs, ins, group)


def row_sizes_of(emit: Emit, values: Sequence[Value], dtypes: Sequence[torch.dtype]) -> list[Any]:
    """How many elements of the packed tensor a row of each value takes."""
    sizes = item_sizes(dtypes)
    return [product(emit, [*emit.shape(value)[1:], size]) for value, size in zip(values, sizes, strict=True)]


def elements(emit: Emit, rows: Sequence[Sequence[Any]], row_sizes: Sequence[Any]) -> list[list[Any]]:
    """How many elements of the packed tensor so many rows take, by member and rank."""
    return [[product(emit, [n, size]) for n in member] for member, size in zip(rows, row_sizes, strict=True)]


def total(emit: Emit, sizes: Sequence[Any]) -> Any:
    """The sum of sizes, folded where they are numbers."""
    known, found = 0, None
    for size in sizes:
        if isinstance(size, int):
            known += size
        else:
            found = size if found is None else emit(operator.add, found, size)
    if found is None:
        return known
    return found if known == 0 else emit(operator.add, found, known)
