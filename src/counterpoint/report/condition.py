"""Conditions such as `exposed_us > 500 or left_alone > 0`, for a user's CI: numbers, names, arithmetic, comparison."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from counterpoint.errors import OptionError
from counterpoint.options import near_names

_BINARY: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = MappingProxyType(
    {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
)
_COMPARISONS: Mapping[type[ast.AST], Callable[[Any, Any], bool]] = MappingProxyType(
    {
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
    }
)
LONGEST = 500
"""Characters of a condition; far more than one needs, and few enough to read without harm."""


@dataclass(frozen=True)
class Condition:
    """One condition, read and not yet asked."""

    text: str
    tree: ast.expr

    @staticmethod
    def parse(text: str) -> Condition:
        """Read a condition; OptionError says what is not understood."""
        if len(text) > LONGEST:
            raise OptionError(f"the condition is longer than {LONGEST} characters", next_step="shorten it")
        try:
            return Condition(text, ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise OptionError(
                f"the condition {text!r} cannot be read", next_step="write one like 'exposed_us > 500'"
            ) from error

    def holds(self, values: Mapping[str, float]) -> bool:
        """Whether it is true of these values."""
        return bool(self._value(self.tree, values))

    def _value(self, node: ast.AST, values: Mapping[str, float]) -> Any:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value
        if isinstance(node, ast.Name):
            return self._named(node.id, values)
        if isinstance(node, ast.BoolOp):
            # All parts, so that a name that does not exist is found whatever the others say.
            parts = [self._value(part, values) for part in node.values]
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            inner = self._value(node.operand, values)
            return not inner if isinstance(node.op, ast.Not) else -inner
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return self._computed(node, values)
        if isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
            sides = [self._value(side, values) for side in (node.left, *node.comparators)]
            pairs = zip(node.ops, sides, sides[1:], strict=False)
            return all(_COMPARISONS[type(op)](left, right) for op, left, right in pairs)
        raise OptionError(
            f"{ast.unparse(node)!r} does not belong in a condition",
            where=f"condition {self.text!r}",
            next_step="use names, numbers, + - * /, comparisons, and, or, not",
        )

    def _computed(self, node: ast.BinOp, values: Mapping[str, float]) -> float:
        left, right = self._value(node.left, values), self._value(node.right, values)
        try:
            return float(_BINARY[type(node.op)](left, right))
        except (ZeroDivisionError, OverflowError) as error:
            raise OptionError(
                f"{ast.unparse(node)!r} cannot be computed: {error}", where=f"condition {self.text!r}"
            ) from error

    def _named(self, name: str, values: Mapping[str, float]) -> float:
        if name not in values:
            near = near_names(name, values)
            raise OptionError(
                f"there is no value {name!r}",
                where=f"condition {self.text!r}",
                next_step=f"did you mean {near}?" if near else f"the values are {', '.join(values)}",
            )
        return values[name]
