"""Arguments of nodes as text and back, with their types: `[1, 2]` is a list, `(1, 2)` a tuple, `1.0` a float."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from counterpoint import _torch
from counterpoint.errors import GraphError
from counterpoint.ir.text import words
from counterpoint.ir.text.expression import read_number
from counterpoint.ir.text.lex import Cursor, quote
from counterpoint.ir.text.symbols import Symbolic, SymbolPrinter, SymbolReader

_SYMBOLIC_WORDS = {torch.SymInt: "sym", torch.SymFloat: "symfloat", torch.SymBool: "symbool"}


class GroupName(str):
    """The name of a process group that stood in the graph as an object. A plain string to every operator and pass."""

    __slots__ = ()


@dataclass(frozen=True)
class Opaque:
    """Stands for an object that a text cannot hold, such as a device mesh: only its type is kept."""

    type_name: str


def object_text(value: object) -> str | None:
    """`group("0")` or `object("module.Class")` for an object that travels by name only; None for ordinary values."""
    if isinstance(value, GroupName):
        return f"group({quote(value)})"
    if isinstance(value, Opaque):
        return f"object({quote(value.type_name)})"
    real = _torch.real_object(value)
    name = _torch.group_name(real)
    if name is not None:
        return f"group({quote(name)})"
    return None if real is value else f"object({quote(f'{type(real).__module__}.{type(real).__qualname__}')})"


class ValuePrinter:
    """Writes argument values. One per text, since symbolic numbers share their symbols."""

    def __init__(self, symbols: SymbolPrinter) -> None:
        self._symbols = symbols
        self._by_type: dict[type, Callable[[Any], str]] = {
            fx.Node: lambda v: f"%{v.name}",
            int: str,
            bool: str,
            type(None): str,
            float: repr,
            str: quote,
            complex: lambda v: f"complex({v.real!r}, {v.imag!r})",
            type(...): lambda v: "...",
            torch.dtype: words.DTYPE_WORDS.__getitem__,
            torch.device: lambda v: f'device("{v}")',
            torch.layout: str,
            torch.memory_format: str,
            slice: lambda v: f"slice({self._join((v.start, v.stop, v.step))})",
            range: lambda v: f"range({v.start}, {v.stop}, {v.step})",
            tuple: self._tuple,
            torch.Size: self._tuple,
            list: lambda v: f"[{self._join(v)}]",
            dict: self._dict,
        }
        self._by_type |= dict.fromkeys(Symbolic, self._symbolic)

    def text(self, value: Any) -> str:
        """The text of a value."""
        write = self._by_type.get(type(value))
        if write is not None:
            return write(value)
        named = object_text(value) or self._operator(value)
        if named is not None:
            return named
        # Graphs hold immutable subclasses of list and dict; a named tuple would lose its class.
        for kind in (list, dict):
            if isinstance(value, kind):
                return self._by_type[kind](value)
        raise GraphError(
            f"the value {value!r:.80} of type {type(value).__name__} cannot be written as text",
            next_step="make it an input of the graph, or replace it by plain data before saving",
        )

    def _join(self, items: Any) -> str:
        return ", ".join([self.text(item) for item in items])

    def _tuple(self, items: Any) -> str:
        return f"({self._join(items)},)" if len(items) == 1 else f"({self._join(items)})"

    def _dict(self, items: Mapping[Any, Any]) -> str:
        return "{" + ", ".join(f"{self.text(k)}: {self.text(v)}" for k, v in items.items()) + "}"

    def _symbolic(self, value: Any) -> str:
        return f"{_SYMBOLIC_WORDS[type(value)]}({self._symbols.text(value)})"

    def _operator(self, value: Any) -> str | None:
        word = words.operator_word(value) if callable(value) else None
        return f"op({word})" if word else None


class ValueReader:
    """Reads argument values. `nodes` is the scope of the graph being read."""

    def __init__(self, cursor: Cursor, symbols: SymbolReader, nodes: Mapping[str, fx.Node]) -> None:
        self._cursor = cursor
        self._symbols = symbols
        self._nodes = nodes

    def read(self) -> Any:
        """Read one value."""
        cursor = self._cursor
        kind = cursor.kind
        if kind == "node":
            return self.read_node()
        if kind == "number":
            return read_number(cursor)
        if kind == "string":
            return cursor.string()
        if kind == "mark":
            return self._read_marked()
        if kind == "word":
            return self._read_word()
        raise cursor.error("a value")

    def read_node(self) -> fx.Node:
        """Read a reference to an earlier node of this graph."""
        name = self._cursor.word[1:]
        node = self._nodes.get(name) if self._cursor.kind == "node" else None
        if node is None:
            raise self._cursor.error(
                "a node that is defined above",
                problem=f"node %{name} is used but not defined above in this graph",
                next_step="define it before its first use, or correct the name",
            )
        self._cursor.take()
        return node

    def read_items(self, close: str) -> list[Any]:
        """Read comma-separated values up to a closing bracket, which is stepped over."""
        items = []
        while self._cursor.items(close):
            items.append(self.read())
            self._cursor.comma(close)
        return items

    def _read_marked(self) -> Any:
        cursor = self._cursor
        if cursor.accept("["):
            return self.read_items("]")
        if cursor.accept("("):
            return self._read_tuple()
        if cursor.accept("{"):
            return self._read_dict()
        if cursor.accept("..."):
            return ...
        if cursor.accept("-"):
            return -math.inf if cursor.accept("inf") else -read_number(cursor)
        raise cursor.error("a value")

    def _read_tuple(self) -> Any:
        cursor, start = self._cursor, self._cursor.position
        items = []
        while cursor.items(")"):
            items.append(self.read())
            if cursor.at(")") and len(items) == 1:
                raise cursor.error("`,`: a tuple of one is written `(x,)`", at=start)
            cursor.comma(")")
        return tuple(items)

    def _read_dict(self) -> dict[Any, Any]:
        cursor, items = self._cursor, {}
        while cursor.items("}"):
            start, key = cursor.position, self.read()
            if not isinstance(key, (str, int, float, bool, type(None))):
                raise cursor.error("a string or a number as key", at=start)
            cursor.expect(":")
            items[key] = self.read()
            cursor.comma("}")
        return items

    def _read_word(self) -> Any:
        cursor = self._cursor
        word = cursor.word
        if word in _CONSTANTS:
            cursor.take()
            return _CONSTANTS[word]
        if word in words.TORCH_WORDS:
            cursor.take()
            return words.TORCH_WORDS[word]
        if word in words.DTYPES:
            cursor.take()
            return words.DTYPES[word]
        if word in ("sym", "symfloat", "symbool", "op"):
            return self._read_own_grammar()
        start = cursor.position
        build = _BUILDERS.get(word)
        if build is None:
            raise cursor.error("a value", next_step="strings stand in double quotes; nodes begin with %")
        cursor.take()
        cursor.expect("(")
        try:
            return build(*self.read_items(")"))
        except (TypeError, ValueError, RuntimeError) as problem:
            raise cursor.error(f"arguments that {word} takes ({problem})", at=start) from problem

    def _read_own_grammar(self) -> Any:
        cursor, word = self._cursor, self._cursor.take()
        cursor.expect("(")
        if word == "op":
            value = read_operator(cursor)
        else:
            value = self._symbols.read_number(cursor, word)
        cursor.close(")")
        return value


def read_operator(cursor: Cursor) -> Any:
    """Read the name of an operator or of an allowed function."""
    start = cursor.position
    word = cursor.take_kind("word", "the name of an operator, such as `aten.add.Tensor`")
    found = words.operator_of(word)
    if found is None:
        raise cursor.error(
            "a known operator",
            at=start,
            problem=f"operator {word} is not known",
            next_step=words.advice(word),
        )
    return found


def _text_only(kind: Callable[[str], Any]) -> Callable[[Any], Any]:
    def build(text: Any) -> Any:
        if not isinstance(text, str):
            raise TypeError("one quoted string")
        return kind(text)

    return build


def _numbers_only(kind: Callable[..., Any]) -> Callable[..., Any]:
    def build(*numbers: Any) -> Any:
        if not all(isinstance(n, (int, float, torch.SymInt)) for n in numbers):
            raise TypeError("numbers")
        return kind(*numbers)

    return build


_CONSTANTS: dict[str, Any] = {"None": None, "True": True, "False": False, "inf": math.inf, "nan": math.nan}
_BUILDERS: dict[str, Callable[..., Any]] = {
    "device": _text_only(torch.device),
    "group": _text_only(GroupName),
    "object": _text_only(Opaque),
    "complex": _numbers_only(complex),
    "range": _numbers_only(range),
    "slice": slice,
}
