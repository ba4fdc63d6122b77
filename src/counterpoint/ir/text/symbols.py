"""The symbols of a graph: collected and described when printing, declared in a shape environment when parsing."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import sympy
import torch

from counterpoint import _torch
from counterpoint.errors import GraphError
from counterpoint.ir.text.expression import SYMBOL, expression_text, is_infinite, read_expression, read_number
from counterpoint.ir.text.lex import Cursor

Symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)


class SymbolPrinter:
    """Turns symbolic numbers into text and remembers which symbols occurred."""

    def __init__(self) -> None:
        self._texts: dict[Any, str] = {}
        self._used: dict[Any, Any] = {}

    def text(self, value: Any) -> str:
        """The expression behind a symbolic number; plain numbers are themselves."""
        return self.expression(self.sympy_of(value))

    def sympy_of(self, value: Any) -> Any:
        """The sympy expression of a number, its symbols noted."""
        if not isinstance(value, Symbolic):
            return sympy.sympify(value)
        expression = getattr(value.node, "expr", None)
        if expression is None:
            raise GraphError(
                f"the symbolic number {value} has no expression, so the graph text cannot hold it",
                next_step="capture without nested (jagged) tensors",
            )
        for symbol in expression.free_symbols:
            self._used.setdefault(symbol, value.node.shape_env)
        return expression

    def name_in_use(self, symbol: Any) -> str | None:
        """The name that a symbol goes by in the shapes, which may have been renamed since; None if it is not there."""
        for environment in self._used.values():
            symbol = environment.unbacked_renamings.get(symbol, symbol)
            break
        return symbol.name if symbol in self._used else None

    def expression(self, expression: Any) -> str:
        """The text of an expression; each one is worked out once."""
        text = self._texts.get(expression)
        if text is None:
            text = self._texts[expression] = expression_text(expression)
        return text

    def lines(self) -> list[str]:
        """One line for each symbol that occurred, then one for each fact that speaks of these symbols alone."""
        facts = self._facts()
        symbols = sorted(self._used, key=lambda s: (s.name.rstrip("0123456789"), len(s.name), s.name))
        return [self._declaration(symbol) for symbol in symbols] + [f"assume {fact}" for fact in facts]

    def _facts(self) -> list[str]:
        environments = list({id(env): env for env in self._used.values()}.values())
        found: dict[str, None] = {}
        for environment in environments:
            for fact in _torch.known_facts(environment):
                if fact.free_symbols and fact.free_symbols <= self._used.keys():
                    # A fact without words is dropped: a reader then knows less, never something wrong.
                    with contextlib.suppress(GraphError):
                        found.setdefault(self.expression(fact))
        return sorted(found)

    def _declaration(self, symbol: Any) -> str:
        facts = _torch.symbol_facts(self._used[symbol], symbol)
        hint = "" if facts.hint is None else f" = {facts.hint!r}"
        low, high = (_bound_text(bound) for bound in (facts.lower, facts.upper))
        usual = (_usual_low(symbol.name), "inf")
        bounds = "" if (low, high) == usual else f" in [{low}, {high}]"
        marks = " size" if facts.size_like else ""
        if symbol.name[0] in "s" and (symbol.is_positive is True) != _positive(facts.lower):
            marks += " positive" if symbol.is_positive else " signed"
        return f"symbol {symbol.name}{hint}{bounds}{marks}"


def _bound_text(bound: Any) -> str:
    if is_infinite(bound):
        return "inf" if bound > 0 else "-inf"
    return repr(float(bound)) if bound.is_Float else str(int(bound))


def _usual_low(name: str) -> str:
    # A size that is a symbol is at least 2: torch specialises 0 and 1.
    return "2" if name[0] == "s" else "-inf"


def _positive(lower: Any) -> bool:
    return bool(lower >= 1)


class SymbolReader:
    """Declares the symbols of a text in one shape environment and makes symbolic numbers of it."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self._symbols: dict[str, Any] = {}
        self._hints: dict[Any, Any] = {}
        self._made: dict[tuple[type, Any], Any] = {}
        self._facts: list[Any] = []

    def read_declaration(self, cursor: Cursor) -> None:
        """`symbol s0 = 16 in [8, 64]`, after the word `symbol`."""
        start, name = cursor.position, cursor.take_kind("word", "the name of a symbol")
        if not SYMBOL.fullmatch(name):
            raise cursor.error(
                "s, u, zf or zuf and a number, such as `s0` (a size) or `u0` (known only at run time)", at=start
            )
        if name in self._symbols:
            raise cursor.error("a new symbol", at=start, problem=f"symbol {name} is declared twice")
        hint = _read_signed_number(cursor) if cursor.accept("=") else None
        if (hint is None) != name.startswith(("u", "zu")):
            wanted = "no value (it is known only at run time)" if name.startswith(("u", "zu")) else "`= value`"
            raise cursor.error(f"{wanted} for {name}")
        low, high = _read_range(cursor, whole=not name.startswith("z"), usual_low=float(_usual_low(name)))
        if hint is not None and not low <= hint <= high:
            raise cursor.error("", at=start, problem=f"the value {hint} of {name} is outside [{low}, {high}]")
        marks = {cursor.take() for _ in range(2) if cursor.at("size") or cursor.at("positive") or cursor.at("signed")}
        self._declare(name, _torch.SymbolFacts(hint, low, high, "size" in marks), marks)

    def _declare(self, name: str, facts: _torch.SymbolFacts, marks: set[str]) -> None:
        if name[0] == "s":
            positive = "signed" not in marks and ("positive" in marks or _positive(facts.lower))
            symbol = sympy.Symbol(name, integer=True, positive=True if positive else None)
        elif name[0] == "u":
            symbol = sympy.Symbol(name, integer=True)
        else:
            symbol = sympy.Symbol(name, real=True)
        self._symbols[name] = symbol
        if facts.hint is not None:
            self._hints[symbol] = sympy.sympify(facts.hint)
        _torch.declare_symbol(self.environment, symbol, facts)

    def read_fact(self, cursor: Cursor) -> None:
        """`assume s0 > s1`, after the word `assume`. Facts take effect in `finish`, when no tensor is made any more."""
        start, fact = cursor.position, self.read(cursor)
        if not (fact.is_Boolean or fact.is_Relational) or fact == sympy.false:
            raise cursor.error("a relation between symbols that can hold", at=start)
        if fact != sympy.true:
            self._facts.append(fact)

    def finish(self) -> None:
        """Add the facts to the environment."""
        for fact in self._facts:
            _torch.assume_fact(self.environment, fact)

    def read(self, cursor: Cursor) -> Any:
        """Read an expression over the declared symbols."""
        start = cursor.position
        try:
            return read_expression(cursor, lambda: self.read_symbol(cursor))
        except (TypeError, ValueError, ArithmeticError) as problem:
            # What sympy raises for sums of truth values, infinities without sign and the like.
            raise cursor.error(f"an expression that makes sense ({problem})", at=start) from problem

    def read_whole(self, cursor: Cursor) -> Any:
        """Read a whole number: an int where it is constant, an expression where it is not."""
        if cursor.kind == "number" and (cursor.next_is(",") or cursor.next_is("]") or cursor.next_is("}")):
            plain = read_number(cursor)
            if type(plain) is int:
                return plain
        start, value = cursor.position, self.read(cursor)
        if value.is_Boolean or value.is_Relational or value.is_Float or (value.is_Number and not value.is_Integer):
            raise cursor.error("a whole number", at=start)
        return int(value) if value.is_Integer else value

    def read_symbol(self, cursor: Cursor) -> Any:
        """Read the name of one declared symbol."""
        symbol = self._symbols.get(cursor.word) if cursor.kind == "word" else None
        if symbol is None:
            known = ", ".join(self._symbols) or "none"
            raise cursor.error(
                "a number or a declared symbol",
                next_step=f"declare it at the top of the graph, such as `symbol s0 = 16` (declared here: {known})",
            )
        cursor.take()
        return symbol

    def named(self, name: str) -> Any | None:
        """A declared symbol, or None."""
        return self._symbols.get(name)

    def read_number(self, cursor: Cursor, word: str) -> Any:
        """Read what stands inside `sym(...)`, `symfloat(...)` or `symbool(...)`."""
        if word == "sym":
            return self.integer(self.read_whole(cursor))
        start, expression = cursor.position, self.read(cursor)
        relation = bool(expression.is_Boolean or expression.is_Relational)
        if relation != (word == "symbool"):
            raise cursor.error("a real number" if relation else "a relation, such as `s0 > 4`", at=start)
        return self.boolean(expression) if relation else self.real(expression)

    def integer(self, expression: Any) -> int | torch.SymInt:
        """The number for an expression: a plain int where it is constant."""
        if isinstance(expression, int):
            return expression
        number: torch.SymInt = self._number(torch.SymInt, expression, self.environment.create_symintnode)
        return number

    def real(self, expression: Any) -> float | torch.SymFloat:
        """The same for a real number."""
        if expression.is_number:
            return float(expression)
        number: torch.SymFloat = self._number(torch.SymFloat, expression, self.environment.create_symfloatnode)
        return number

    def boolean(self, expression: Any) -> bool | torch.SymBool:
        """The same for a truth value."""
        if expression in (sympy.true, sympy.false):
            return bool(expression)
        number: torch.SymBool = self._number(
            torch.SymBool, expression, lambda e, hint: self.environment.create_symboolnode(e)
        )
        return number

    def _number(self, kind: type, expression: Any, create: Any) -> Any:
        made = self._made.get((kind, expression))
        if made is None:
            made = self._made[kind, expression] = create(expression, hint=self._hint(kind, expression))
        return made

    def _hint(self, kind: type, expression: Any) -> int | float | None:
        value = expression.xreplace(self._hints)
        if value.free_symbols or kind is torch.SymBool:
            return None
        return int(value) if kind is torch.SymInt else float(value)


def _read_range(cursor: Cursor, *, whole: bool, usual_low: float) -> tuple[Any, Any]:
    low: Any = usual_low
    high: Any = math.inf
    if cursor.accept("in"):
        start = cursor.position
        cursor.expect("[")
        low = _read_signed_number(cursor)
        cursor.expect(",")
        high = _read_signed_number(cursor)
        cursor.expect("]")
        if low > high:
            raise cursor.error("a range whose first bound is not above its second", at=start)
    infinity = _torch.symbolic_functions()["int_oo"] if whole else sympy.oo
    to_bound = sympy.Integer if whole else sympy.Float

    def bound(value: Any) -> Any:
        return (infinity if value > 0 else -infinity) if is_infinite(value) else to_bound(value)

    return bound(low), bound(high)


def _read_signed_number(cursor: Cursor) -> Any:
    sign = -1 if cursor.accept("-") else 1
    return sign * (math.inf if cursor.accept("inf") else read_number(cursor))
