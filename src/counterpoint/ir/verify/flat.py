"""A tensor as a list of where its elements come from, in row-major order.

`Flat(rows, cells)` is a table: each of its `rows` is the concatenation of its cells, and a cell of row r is
`term[start + r * step : start + r * step + length]`, the elements of a term numbered in row-major order. So reshaping
changes nothing, and packing, slicing and splitting only move cells around:

    cat([a, b])                      1 row   [a 0:4] [b 0:6]
    all-gather of it over 8 ranks    8 rows  [A 0:4 step 4] [B 0:6 step 6]      A, B the gathered a and b
    its columns 0:4                  8 rows  [A 0:4 step 4]  ==  1 row [A 0:32]  ==  A itself

which is why a bucketed all-gather comes out equal to the gathers of its members.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from counterpoint.ir.verify.sizes import Size, UndecidedError, divide, tidy

_SPELL_OUT = 256
"""Tables with fewer pieces are stored as one row, larger ones folded as far as they go: one form for one content."""
_TOO_MANY = 100_000


class Cell(NamedTuple):
    """A range of a term, moving by `step` from row to row."""

    term: int
    start: Size
    length: Size
    step: Size


@dataclass(frozen=True)
class Flat:
    """The elements of a tensor. Make one with `flat`, which brings it into its one form."""

    rows: Size
    cells: tuple[Cell, ...]
    _tables: dict[Size, Flat] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def bounds(self) -> dict[Size, int]:
        """Where each cell begins in a row, and last where the row ends."""
        sums = accumulate((c.length for c in self.cells), lambda a, b: tidy(a + b), initial=0)
        return {bound: i for i, bound in enumerate(sums)}

    @cached_property
    def starts(self) -> list[Size]:
        """The keys of `bounds`."""
        return list(self.bounds)

    @cached_property
    def static(self) -> bool:
        """Whether every bound is a plain number."""
        return all(isinstance(start, int) for start in self.starts)

    @property
    def numel(self) -> Size:
        """Number of elements."""
        return tidy(self.rows * self.starts[-1])

    @property
    def whole(self) -> int | None:
        """The term whose first elements these are, in one piece."""
        return self.cells[0].term if len(self.cells) == 1 and self.rows == 1 and self.cells[0].start == 0 else None


def flat(rows: Size, cells: Iterable[Cell]) -> Flat:
    """The one form of a table."""
    merged = _merge(cells)
    if not merged or rows == 0:
        return Flat(1, ())
    if len(merged) == 1 and merged[0].step == merged[0].length:
        return Flat(1, (Cell(merged[0].term, merged[0].start, tidy(rows * merged[0].length), 0),))
    if rows == 1:
        merged = [c._replace(step=0) for c in merged]
    if not isinstance(rows, int) or (rows == 1 and len(merged) <= _SPELL_OUT):
        return Flat(rows, tuple(merged))
    if rows * len(merged) <= _SPELL_OUT:
        return Flat(1, tuple(_merge(_pieces(rows, merged))))
    return _folded(rows, merged)


def whole(term: int, numel: Size) -> Flat:
    """All of one term."""
    return flat(1, (Cell(term, 0, numel, 0),))


def _merge(cells: Iterable[Cell]) -> list[Cell]:
    merged: list[Cell] = []
    for cell in cells:
        if cell.length == 0:
            continue
        last = merged[-1] if merged else None
        if last and (last.term, last.step) == (cell.term, cell.step) and tidy(last.start + last.length) == cell.start:
            merged[-1] = last._replace(length=tidy(last.length + cell.length))
        else:
            merged.append(cell)
    return merged


def _pieces(rows: int, cells: Sequence[Cell]) -> Iterator[Cell]:
    for row in range(rows):
        for cell in cells:
            yield Cell(cell.term, tidy(cell.start + row * cell.step), cell.length, 0)


def _folded(rows: int, cells: list[Cell]) -> Flat:
    """As many rows as the content has periods."""
    first = cells[0]
    for period in range(1, len(cells) // 2 + 1):
        same = (cells[period].term, cells[period].length) == (first.term, first.length)
        if same and len(cells) % period == 0:
            steps = _steps(cells, period, rows)
            if steps is not None:
                folded = (c._replace(step=s) for c, s in zip(cells, steps, strict=False))
                return Flat(rows * (len(cells) // period), tuple(folded))
    return Flat(rows, tuple(cells))


def _steps(cells: Sequence[Cell], period: int, rows: int = 1) -> list[Size] | None:
    """How the cells move from one period to the next; None when they do not repeat."""
    if len(cells) == period:
        return [0] * period
    steps = [tidy(cells[period + i].start - cells[i].start) for i in range(period)]
    times = len(cells) // period
    for i, cell in enumerate(cells):
        model, step = cells[i % period], steps[i % period]
        moved = tidy(model.start + (i // period) * step)
        if (cell.term, cell.length, cell.start) != (model.term, model.length, moved):
            return None
        if rows != 1 and cell.step != tidy(times * step):
            return None
    return steps


def table(value: Flat, rows: Size) -> Flat:
    """The same elements cut into this many rows; not in its one form, so only for taking apart and joining."""
    if value.rows == rows or not value.cells:
        return value
    known = value._tables.get(rows)
    if known is None:
        known = value._tables[rows] = _table(value, rows)
    return known


def _table(value: Flat, rows: Size) -> Flat:
    if value.rows == 1 and len(value.cells) == 1:
        cell = value.cells[0]
        length = divide(cell.length, rows)
        return Flat(rows, (cell._replace(length=length, step=length),))
    if not isinstance(value.rows, int) or not isinstance(rows, int):
        raise UndecidedError
    if value.rows % rows == 0 and value.rows > 1:
        times = value.rows // rows
        if times * len(value.cells) > _TOO_MANY:
            raise UndecidedError
        cells = tuple(_pieces(times, value.cells))
        steps = [tidy(cell.step * times) for cell in value.cells] * times
        return Flat(rows, tuple(c._replace(step=s) for c, s in zip(cells, steps, strict=True)))
    pieces = [piece for row in rows_of(value, rows) for piece in row]
    if len(pieces) % rows:
        raise UndecidedError
    steps_found = _steps(pieces, len(pieces) // rows)
    if steps_found is None:
        raise UndecidedError
    return Flat(rows, tuple(p._replace(step=s) for p, s in zip(pieces, steps_found, strict=False)))


def rows_of(value: Flat, rows: Size) -> list[list[Cell]]:
    """The same elements cut into this many rows, which need not resemble each other."""
    line = spelled_out(value)
    length = divide(line.starts[-1], rows)
    if not isinstance(rows, int) or rows + len(line.cells) > _TOO_MANY:
        raise UndecidedError
    return [between(line, row * length, (row + 1) * length) for row in range(rows)]


def spelled_out(value: Flat) -> Flat:
    """The same elements in a single row; not in its one form."""
    if value.rows == 1:
        return value
    if not isinstance(value.rows, int) or value.rows * len(value.cells) > _TOO_MANY:
        raise UndecidedError
    return Flat(1, tuple(_merge(_pieces(value.rows, value.cells))))


def between(value: Flat, start: Size, end: Size) -> list[Cell]:
    """The cells of a row from one position to another."""
    (first, skipped), (last, kept) = _locate(value, start), _locate(value, end)
    cells = list(value.cells[first:last])
    if kept != 0:
        cells.append(value.cells[last]._replace(length=kept))
    if skipped != 0:
        head = cells[0]
        cells[0] = head._replace(start=tidy(head.start + skipped), length=tidy(head.length - skipped))
    return cells


def _locate(value: Flat, position: Size) -> tuple[int, Size]:
    """The cell that holds a position of a row, and how far into it."""
    known = value.bounds.get(position)
    if known is not None:
        return known, 0
    if len(value.cells) == 1 and not (isinstance(position, int) and value.static):
        return 0, position
    if not isinstance(position, int) or not value.static or not 0 <= position < value.starts[-1]:
        raise UndecidedError
    index = bisect_right(value.starts, position) - 1
    return index, position - value.starts[index]


def columns(value: Flat, rows: Size, start: Size, end: Size) -> Flat:
    """Columns of the tensor seen as a table: what slicing along a dimension takes."""
    try:
        seen = table(value, rows)
        return flat(seen.rows, between(seen, start, end))
    except UndecidedError:
        parts = [between(Flat(1, tuple(row)), start, end) for row in rows_of(value, rows)]
        return flat(1, [cell for part in parts for cell in part])


def beside(values: Iterable[Flat], rows: Size) -> Flat:
    """Tables side by side: what concatenating along a dimension gives."""
    members = list(values)
    try:
        return flat(rows, [cell for member in members for cell in table(member, rows).cells])
    except UndecidedError:
        cut = [rows_of(member, rows) for member in members]
        return flat(1, [cell for row in zip(*cut, strict=True) for part in row for cell in part])


def replaced(value: Flat, rows: Size, start: Size, end: Size, part: Flat) -> Flat:
    """The tensor after writing `part` over some of its columns."""
    width = divide(value.numel, rows)
    around = [columns(value, rows, a, b) for a, b in ((0, start), (end, width)) if a != b]
    written = [part, *around] if start == 0 else [around[0], part, *around[1:]]
    return beside(written, rows)
