"""Terms: what a value is computed from, each distinct one stored once, so that equal computations have equal numbers.

Three kinds of unary terms move to the outside, because they commute with communication: a constant factor with
everything linear, a cast and a reinterpretation of bits with operators that only move data. What is inside then reads
the same whether a pass scales, casts or packs before the collective or after it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch

from counterpoint.ir.verify.flat import Flat
from counterpoint.ir.verify.sizes import Size, divide, tidy

SCALE, CAST, BITS = "scale", "cast", "bits"
ROWS = "rows"
"""Element i of row r is element `i + shift` of the r-th operand; the shifts are the attributes, the first is 0."""
WRAPPERS = frozenset({SCALE, CAST, BITS})
REDUCES = frozenset({"all_reduce", "reduce_scatter"})
COMMUNICATES = REDUCES | {"all_gather", "all_to_all", "broadcast", "communicate"}
_LINEAR = ("sum", "avg")


class Operand(NamedTuple):
    """A tensor handed to an operator: its elements and its shape."""

    value: Flat
    shape: tuple[Size, ...]


class Term(NamedTuple):
    """One application. Communication reads `(group, detail...)` in its attributes."""

    kind: str
    attributes: tuple[Hashable, ...]
    operands: tuple[int | Operand, ...]


class Terms:
    """The table of distinct terms."""

    def __init__(self) -> None:
        self.all: list[Term] = []
        self.numel: list[Size] = []
        self.origin: list[str] = []
        """Name of the node that first computed each term, for messages."""
        self._numbers: dict[Term, int] = {}

    def copy(self) -> Terms:
        """A table that knows the same terms and can grow by itself."""
        other = Terms()
        other.all, other.numel, other.origin = list(self.all), list(self.numel), list(self.origin)
        other._numbers = dict(self._numbers)
        return other

    def number(
        self,
        kind: str,
        attributes: tuple[Hashable, ...],
        operands: tuple[int | Operand, ...],
        numel: Size,
        origin: str,
    ) -> int:
        """The number of a term, as it is."""
        term = Term(kind, attributes, operands)
        known = self._numbers.get(term)
        if known is None:
            known = self._numbers[term] = len(self.all)
            self.all.append(term)
            self.numel.append(numel)
            self.origin.append(origin)
        return known

    def scale(self, of: int, factor: Fraction) -> int:
        """A constant times a term."""
        kind, attributes, operands = self.all[of]
        if kind == SCALE:
            of, factor = self._only(operands), factor * self._factor(attributes)
        return of if factor == 1 else self.number(SCALE, (factor,), (of,), self.numel[of], self.origin[of])

    def cast(self, of: int, dtype: torch.dtype) -> int:
        """A term in another dtype."""
        kind, attributes, operands = self.all[of]
        if kind == SCALE and dtype.is_floating_point:
            return self.scale(self.cast(self._only(operands), dtype), self._factor(attributes))
        return self.number(CAST, (dtype,), (of,), self.numel[of], self.origin[of])

    def bits(self, of: int, old: torch.dtype, new: torch.dtype) -> int:
        """A term's bytes read as another dtype."""
        kind, attributes, operands = self.all[of]
        if kind == BITS:
            of, old = self._only(operands), attributes[0]  # type: ignore[assignment]
        if old == new:
            return of
        size = divide(tidy(self.numel[of] * old.itemsize), new.itemsize)
        return self.number(BITS, (old, new), (of,), size, self.origin[of])

    def move(self, kind: str, attributes: tuple[Hashable, ...], of: int, times: Size, origin: str) -> int:
        """A collective that only moves data; its result is `times` as large."""
        inner, details, operands = self.all[of]
        if inner in WRAPPERS:
            return self._wrap(inner, details, self.move(kind, attributes, self._only(operands), times, origin))
        if (kind, inner) == ("all_gather", "reduce_scatter") and attributes[0] == details[0]:
            return self.number("all_reduce", details, operands, tidy(self.numel[of] * times), origin)
        return self.number(kind, attributes, (of,), tidy(self.numel[of] * times), origin)

    def reduce(self, kind: str, group: Hashable, op: str, ranks: int | None, of: int, size: Size, origin: str) -> int:
        """A reduction over a group, `size` elements large. An average is a sum over as many ranks as the group has."""
        inner, details, operands = self.all[of]
        if inner == SCALE and (op in _LINEAR or (op in ("max", "min") and self._factor(details) > 0)):
            reduced = self.reduce(kind, group, op, ranks, self._only(operands), size, origin)
            return self.scale(reduced, self._factor(details))
        if op == "avg" and ranks:
            return self.scale(self.reduce(kind, group, "sum", ranks, of, size, origin), Fraction(1, ranks))
        return self.number(kind, (group, op), (of,), size, origin)

    def rows(self, of: Sequence[int], shifts: Sequence[int], origin: str) -> int:
        """Rows of different terms as one term, each as long as the whole first one; what all share moves outside."""
        first = self.all[of[0]]
        if first.kind in (SCALE, CAST) and all(self.all[t][:2] == first[:2] for t in of):
            inner = [self._only(self.all[t].operands) for t in of]
            return self._wrap(first.kind, first.attributes, self.rows(inner, shifts, origin))
        return self.number(ROWS, tuple(shifts), tuple(of), tidy(self.numel[of[0]] * len(of)), origin)

    def row(self, of: int, row: int, ranks: int) -> tuple[int, int] | None:
        """One row of what was done to every element of rows, one a rank: its term and shift. None for other terms."""
        kind, attributes, operands = self.all[of]
        if kind == ROWS and len(operands) == ranks:
            return self._only(operands[row:]), int(attributes[row])  # type: ignore[call-overload]
        if kind not in (SCALE, CAST, "all_reduce"):
            return None
        inner = self.row(self._only(operands), row, ranks)
        if inner is None:
            return None
        term, shift = inner
        if kind != "all_reduce":
            return self._wrap(kind, attributes, term), shift
        group, op = attributes
        return self.reduce(kind, group, str(op), None, term, self.numel[term], self.origin[of]), shift

    def bare(self, of: int) -> int:
        """A term without its factor and casts."""
        while self.all[of].kind in WRAPPERS:
            of = self._only(self.all[of].operands)
        return of

    def _wrap(self, kind: str, attributes: tuple[Hashable, ...], of: int) -> int:
        if kind == SCALE:
            return self.scale(of, self._factor(attributes))
        if kind == CAST:
            return self.cast(of, attributes[0])  # type: ignore[arg-type]
        return self.bits(of, *attributes)  # type: ignore[arg-type]

    @staticmethod
    def _only(operands: tuple[int | Operand, ...]) -> int:
        operand: Any = operands[0]
        return int(operand)

    @staticmethod
    def _factor(attributes: tuple[Hashable, ...]) -> Fraction:
        factor: Any = attributes[0]
        return Fraction(factor)


def factor_of(number: float) -> Fraction:
    """The fraction meant by a constant: 0.3333333333333333 is one third, so that 1/3 and / 3 agree."""
    given = Fraction(number)
    simple = given.limit_denominator(1 << 20)
    return simple if simple and abs(simple - given) <= abs(given) * Fraction(1, 10**12) else given
