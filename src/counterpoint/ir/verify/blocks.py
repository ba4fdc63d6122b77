"""Values cut into one block a rank, as reduce-scatter and all-to-all do, and what gathering makes of such blocks.

Where the blocks of a value are equal parts of the same terms, they are rows of a table. Otherwise - a buffer of which a
part was written, members of a bucket that end within a block - what stands in one place of every block becomes a term
of its own (`ROWS`). It depends on these places alone, so a member has the same terms alone and in any bucket.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from torch.fx import Node

from counterpoint.ir.verify.flat import Cell, Flat, flat, rows_of, table
from counterpoint.ir.verify.reader import Reader
from counterpoint.ir.verify.sizes import Size, UndecidedError, divide, tidy

_TOO_MANY = 100_000


def blocks(reader: Reader, node: Node, value: Flat, ranks: int) -> Flat:
    """The value as one row a rank, each cell an equal part of its term; as one term where that cannot be told."""
    try:
        seen = table(value, ranks)
        if all(tidy(c.step * ranks) == reader.terms.numel[c.term] for c in seen.cells):
            return seen
    except UndecidedError:
        pass
    try:
        return Flat(ranks, tuple(_columns(reader, node, rows_of(value, ranks))))
    except UndecidedError:
        return table(reader.packed(value, node), ranks)


def _columns(reader: Reader, node: Node, rows: Sequence[Sequence[Cell]]) -> list[Cell]:
    """One cell for each range of places that no row interrupts."""
    if not all(isinstance(cell.length, int) for row in rows for cell in row):
        raise UndecidedError
    starts = [list(accumulate((cell.length for cell in row), initial=0)) for row in rows]
    bounds = sorted({bound for row in starts for bound in row})
    if len(bounds) * len(rows) > _TOO_MANY:
        raise UndecidedError
    cells = []
    for begin, end in pairwise(bounds):
        column = [_cut(row, at, begin, end) for row, at in zip(rows, starts, strict=True)]
        cells.append(_column(reader, node, column))
    return cells


def _cut(row: Sequence[Cell], starts: Sequence[int], begin: int, end: int) -> Cell:
    index = bisect_right(starts, begin) - 1
    cell = row[index]
    return cell._replace(start=tidy(cell.start + begin - starts[index]), length=end - begin)


def _column(reader: Reader, node: Node, column: Sequence[Cell]) -> Cell:
    first, terms = column[0], reader.terms
    shifts = [tidy(cell.start - first.start) for cell in column]
    own = {cell.term for cell in column}
    if len(own) == 1 and [tidy(shift * len(column)) for shift in shifts] == _multiples(terms.numel[first.term], column):
        return first._replace(step=divide(terms.numel[first.term], len(column)))
    if not all(isinstance(shift, int) for shift in shifts):
        raise UndecidedError
    term = terms.rows([cell.term for cell in column], shifts, node.name)
    return first._replace(term=term, step=terms.numel[first.term])


def _multiples(size: Size, column: Sequence[Cell]) -> list[Size]:
    return [tidy(size * row) for row in range(len(column))]


def gathered(reader: Reader, ranks: int, cells: Sequence[Cell]) -> Flat:
    """Gathered blocks, side by side in each row; rows of different terms that were reduced lie where they were."""
    in_rows = any(reader.terms.row(cell.term, 0, ranks) for cell in cells)
    if not in_rows or ranks * len(cells) > _TOO_MANY:
        return flat(ranks, cells)
    return flat(1, [_in_row(reader, cell, row, ranks) for row in range(ranks) for cell in cells])


def _in_row(reader: Reader, cell: Cell, row: int, ranks: int) -> Cell:
    found = reader.terms.row(cell.term, row, ranks)
    if found is None:
        return cell._replace(start=tidy(cell.start + row * cell.step), step=0)
    term, shift = found
    return Cell(term, tidy(cell.start + shift), cell.length, 0)


def gathered_pack(reader: Reader, node: Node, group: Hashable, ranks: int | None, value: Flat) -> Flat | None:
    """Gathering a reduce-scattered pack is reducing its members, also where blocks do not end with members."""
    terms = reader.terms
    term = value.whole
    if term is None or value.numel != terms.numel[term]:
        return None
    bare = terms.bare(term)
    kind, attributes, operands = terms.all[bare]
    inner = operands[0] if operands else None
    if kind != "reduce_scatter" or attributes[0] != group or not isinstance(inner, int):
        return None
    pack = terms.all[inner]
    if pack.kind != "pack" or (bare != term and terms.all[term].kind != "scale"):
        return None
    operand: Any = pack.operands[0]
    op = str(attributes[1])

    def reduced(t: int) -> int:
        return terms.reduce("all_reduce", group, op, ranks, t, terms.numel[t], node.name)

    whole_value = reader.each(operand.value, reduced)
    factor: Any = terms.all[term].attributes[0] if bare != term else 1
    return reader.scaled(whole_value, factor)
