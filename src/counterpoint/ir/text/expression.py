"""Symbolic shape expressions as text and back, by a grammar of our own: nothing is ever evaluated as Python."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import sympy

from counterpoint import _torch
from counterpoint.errors import GraphError
from counterpoint.ir.text.lex import Cursor

_FUNCTIONS: dict[str, Any] = _torch.symbolic_functions()
_BOOLEANS: dict[str, Any] = {"And": sympy.And, "Or": sympy.Or, "Not": sympy.Not}
_RELATIONS: dict[str, Any] = {
    "==": sympy.Eq,
    "!=": sympy.Ne,
    "<=": sympy.Le,
    ">=": sympy.Ge,
    "<": sympy.Lt,
    ">": sympy.Gt,
}
_INFINITIES = (math.inf, sympy.oo, _FUNCTIONS["int_oo"])
SYMBOL = re.compile(r"(s|u|zf|zuf)\d+")
_MAX_EXPONENT = 64
_MAX_DIGITS = 4000
_RELATION, _SUM, _PRODUCT, _POWER, _ATOM = range(5)


def expression_text(expression: Any) -> str:
    """The text of a sympy expression; the same in every process."""
    return _text(expression)[0]


def _text(e: Any) -> tuple[str, int]:
    """Text and binding strength."""
    if e.is_Symbol:
        return e.name, _ATOM
    if e.is_Number:
        return _number(e)
    if e.is_Add:
        return _sum(e), _SUM
    if e.is_Mul:
        return _product(e), _PRODUCT
    if e.is_Pow:
        return f"{_bound(e.base, _ATOM)}**{_bound(e.exp, _ATOM)}", _POWER
    if e in (sympy.true, sympy.false):
        return str(bool(e)), _ATOM
    if isinstance(e, sympy.core.relational.Relational):
        relation: Any = e
        return f"{_bound(relation.lhs, _SUM)} {relation.rel_op} {_bound(relation.rhs, _SUM)}", _RELATION
    name = type(e).__name__
    if name == "FloorDiv":
        return f"{_bound(e.args[0], _PRODUCT)} // {_bound(e.args[1], _POWER)}", _PRODUCT
    if name not in _FUNCTIONS and name not in _BOOLEANS:
        raise GraphError(
            f"the shape expression {e} uses {name}, which the graph text has no name for",
            next_step="add it to the symbolic functions in counterpoint/_torch.py",
        )
    arguments = [_text(a)[0] for a in e.args]
    if name in ("Max", "Min", "And", "Or"):
        arguments.sort()
    return f"{name}({', '.join(arguments)})", _ATOM


def _bound(e: Any, strength: int) -> str:
    text, own = _text(e)
    return text if own >= strength else f"({text})"


def _number(e: Any) -> tuple[str, int]:
    if is_infinite(e):
        return ("inf", _ATOM) if e > 0 else ("-inf", _PRODUCT)
    if e.is_Rational and not e.is_Integer:
        return f"{e.p}/{e.q}", _PRODUCT
    text = str(int(e)) if e.is_Integer else repr(float(e))
    return text, _PRODUCT if text.startswith("-") else _ATOM


def _sum(e: Any) -> str:
    # Numbers last and negative terms after positive ones: `s0 - s1 + 4`.
    terms = [(bool(term.is_Number), _bound(term, _PRODUCT)) for term in e.args]
    terms.sort(key=lambda term: (term[0], term[1].startswith("-"), term[1]))
    text = terms[0][1]
    for _, term in terms[1:]:
        text += f" - {term[1:]}" if term.startswith("-") else f" + {term}"
    return text


def _product(e: Any) -> str:
    coefficient, rest = e.as_coeff_Mul()
    # A floor division or a modulus in the middle of a product must keep its brackets: `8*(s0 // 8)`.
    factors = [_bound(factor, _POWER) for factor in sympy.Mul.make_args(rest)]
    factors.sort(key=lambda factor: (factor.startswith("("), factor))
    if coefficient == 1:
        return "*".join(factors)
    if coefficient == -1:
        return "-" + "*".join(factors)
    return "*".join([_text(coefficient)[0], *factors])


def read_expression(cursor: Cursor, symbol: Callable[[], Any]) -> Any:
    """Read an expression at the cursor. `symbol` reads one symbol, so that unknown ones are reported in place."""
    left = _read_sum(cursor, symbol)
    if cursor.kind == "mark" and cursor.word in _RELATIONS:
        relation = _RELATIONS[cursor.take()]
        return relation(left, _read_sum(cursor, symbol))
    return left


def _read_sum(cursor: Cursor, symbol: Callable[[], Any]) -> Any:
    total = _read_product(cursor, symbol)
    while cursor.at("+") or cursor.at("-"):
        sign = 1 if cursor.take() == "+" else -1
        total = total + sign * _read_product(cursor, symbol)
    return total


def _read_product(cursor: Cursor, symbol: Callable[[], Any]) -> Any:
    value = _read_signed(cursor, symbol)
    while cursor.kind == "mark" and cursor.word in ("*", "/", "//"):
        start, sign = cursor.position, cursor.take()
        factor = _read_signed(cursor, symbol)
        if sign != "*" and factor == 0:
            raise cursor.error("a divisor other than zero", at=start)
        if sign == "//":
            value = _FUNCTIONS["FloorDiv"](value, factor)
        else:
            value = value * (factor if sign == "*" else 1 / factor)
    return value


def _read_signed(cursor: Cursor, symbol: Callable[[], Any]) -> Any:
    if cursor.accept("-"):
        return -_read_signed(cursor, symbol)
    base = _read_atom(cursor, symbol)
    if cursor.accept("**"):
        start = cursor.position
        exponent = _read_atom(cursor, symbol)
        # A bound, because sympy would compute 9**9**9 to the last digit.
        if not exponent.is_Integer or abs(exponent) > _MAX_EXPONENT:
            raise cursor.error(f"a whole exponent of at most {_MAX_EXPONENT}", at=start)
        return base**exponent
    return base


def _read_atom(cursor: Cursor, symbol: Callable[[], Any]) -> Any:
    if cursor.accept("("):
        inner = read_expression(cursor, symbol)
        cursor.close(")")
        return inner
    if cursor.kind == "number":
        return read_number(cursor, sympy.Integer, sympy.Float)
    if cursor.accept("inf"):
        return _FUNCTIONS["int_oo"]
    for word, truth in (("True", sympy.true), ("False", sympy.false)):
        if cursor.accept(word):
            return truth
    name = cursor.word
    if cursor.kind == "word" and (name in _BOOLEANS or (name in _FUNCTIONS and name != "int_oo")):
        return _read_call(cursor, symbol)
    return symbol()


def _read_call(cursor: Cursor, symbol: Callable[[], Any]) -> Any:
    start, name = cursor.position, cursor.take()
    cursor.expect("(")
    arguments = []
    while cursor.items(")"):
        arguments.append(read_expression(cursor, symbol))
        cursor.comma(")")
    try:
        return (_BOOLEANS.get(name) or _FUNCTIONS[name])(*arguments)
    except Exception as problem:
        # The functions check their arguments with every kind of exception.
        raise cursor.error(f"arguments that {name} takes ({problem})", at=start) from problem


def read_number(cursor: Cursor, whole: Callable[[int], Any] = int, real: Callable[[float], Any] = float) -> Any:
    """Read an unsigned number: a whole one by `whole`, one with a point or an exponent by `real`."""
    start = cursor.position
    digits = cursor.take_kind("number", "a number")
    # Python itself refuses longer ones, in versions that differ.
    if len(digits) > _MAX_DIGITS:
        raise cursor.error("a number of fewer digits", at=start)
    return whole(int(digits)) if digits.isdigit() else real(float(digits))


def is_infinite(value: Any) -> bool:
    """Whether a bound is an infinity of either kind that shape environments use, or of Python's."""
    return any(value in (infinity, -infinity) for infinity in _INFINITIES)
