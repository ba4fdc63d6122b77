"""Arithmetic on sizes that never adds a guard: an int stays an int, a symbolic size becomes its plain expression."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import sympy
import torch

Size = Any
"""An int, or a sympy expression in expanded form; equal sizes compare equal with `==`."""


class UndecidedError(Exception):
    """A question about symbolic sizes or unusual layouts that has no answer here. Never leaves this package."""


def exact(value: int | torch.SymInt) -> Size:
    """A size as the graph gives it."""
    return tidy(value.node.expr) if isinstance(value, torch.SymInt) else value


def tidy(value: Size) -> Size:
    """The canonical form of a computed size."""
    if isinstance(value, int):
        return value
    expanded = sympy.expand(value)
    return int(expanded) if expanded.is_Integer else expanded


def product(sizes: Iterable[Size]) -> Size:
    """The product, canonical."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return tidy(total)


def numel(tensor: torch.Tensor) -> Size:
    """Number of elements."""
    return product(map(exact, tensor.shape))


def divide(total: Size, parts: Size) -> Size:
    """`total / parts` where that is a whole number for certain."""
    if isinstance(total, int) and isinstance(parts, int):
        if parts == 0 or total % parts:
            raise UndecidedError
        return total // parts
    quotient = tidy(sympy.cancel(total / parts))
    if not isinstance(quotient, int) and sympy.fraction(sympy.together(quotient))[1] != 1:
        raise UndecidedError
    return quotient


def ratio(one: Size, other: Size) -> Any:
    """`one / other` as a fraction, or as an expression where it depends on a symbol."""
    if isinstance(one, int) and isinstance(other, int):
        return Fraction(one, other)
    quotient = sympy.cancel(one / other)
    return Fraction(int(quotient.p), int(quotient.q)) if quotient.is_Rational else quotient


def is_plain(value: Size) -> bool:
    """Whether two such sizes that look different are different: a number or a polynomial, no rounding division."""
    return isinstance(value, int) or bool(value.is_polynomial(*value.free_symbols))


def hint(value: Any) -> int | None:
    """The size that tracing saw, without a guard; None where there was none."""
    if isinstance(value, torch.SymInt):
        value = value.node.hint
    return value if isinstance(value, int) else None
