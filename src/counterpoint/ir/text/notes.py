"""Metadata beside the value: where a node comes from in the user's program, and plain data that passes leave on it."""

from __future__ import annotations

import re
from typing import Any

from torch import fx

from counterpoint import _torch
from counterpoint.ir.provenance import is_machinery
from counterpoint.ir.text.lex import Cursor
from counterpoint.ir.text.symbols import SymbolPrinter, SymbolReader
from counterpoint.ir.text.values import ValuePrinter, ValueReader

NOTES = ("counterpoint", "partitioner_tag", "autograd_backward")
"""The metadata that `notes=True` prints, where it is plain data."""
_BINDINGS = "unbacked_bindings"

_FRAME = re.compile(r'^ *File "([^"\n]*)", line (\d+), in ([^\n]*)(?:\n([^\n]*))?', re.MULTILINE)
_LOCATION = re.compile(
    r"at (?:(?P<file>.*?):(?P<line>\d+) in (?P<function>[^|]*?)|\?)"
    r"(?: \|(?: (?P<module>[^|]+?))?(?: \| (?P<code>.*?))?)?\s*"
)
_MODULE = re.compile(r"(?P<backward>backward of )?(?P<path>\S+)(?: (?P<kind>.*))?")
_STACKS = ("nn_module_stack", "fwd_nn_module_stack")


class LocationPrinter:
    """Writes the user's source line and module of nodes; a line holds for all nodes until the next one."""

    def __init__(self) -> None:
        self._frames: dict[str, tuple[str, str]] = {}

    def line(self, node: fx.Node) -> str:
        """`at model.py:12 in forward | layers.0 Block | return self.b(x)`."""
        where, code = self._frame(node.meta.get("stack_trace"))
        module = _module_text(node)
        line = f"at {where}"
        if module or code:
            line += f" | {module}" if module else " |"
        return f"{line} | {code}" if code else line

    def _frame(self, trace: Any) -> tuple[str, str]:
        if not isinstance(trace, str):
            return "?", ""
        found = self._frames.get(trace)
        if found is None:
            found = self._frames[trace] = _users_frame(trace)
        return found


def _users_frame(trace: str) -> tuple[str, str]:
    frames = list(_FRAME.finditer(trace))
    if not frames:
        return "?", ""
    own = [frame for frame in frames if not is_machinery(frame[1])]
    file, line, function, code = (own or frames)[-1].groups()
    return f"{_plain(file)}:{line} in {_plain(function)}", (code or "").strip()


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "_").split())


def _module_text(node: fx.Node) -> str:
    """The innermost module, without the name that the compiler gave to the root."""
    for key in _STACKS:
        stack = node.meta.get(key)
        if isinstance(stack, dict) and stack:
            path, kind = list(stack.values())[-1]
            path = re.sub(r"^L\['\w+'\]\.?", "", str(path)) or "<root>"
            name = kind.__qualname__ if isinstance(kind, type) else str(kind)
            backward = "backward of " if key.startswith("fwd") else ""
            return f"{backward}{'_'.join(_plain(path).split())} {_plain(name)}".rstrip()
    return ""


def read_location(cursor: Cursor) -> dict[str, Any]:
    """The metadata that a location line stands for."""
    start, match = cursor.position, _LOCATION.fullmatch(cursor.word)
    if match is None:
        raise cursor.error("`at FILE:LINE in FUNCTION | MODULE | CODE` or `at ?`", at=start)
    cursor.take()
    metadata: dict[str, Any] = {}
    if match["file"] is not None:
        code = f"    {match['code']}\n" if match["code"] else ""
        metadata["stack_trace"] = f'  File "{match["file"]}", line {match["line"]}, in {match["function"]}\n{code}'
    module = _MODULE.fullmatch(match["module"] or "")
    if module is not None:
        path = module["path"]
        metadata[_STACKS[bool(module["backward"])]] = {path: (path, module["kind"] or "")}
    return metadata


class NotePrinter:
    """Writes what stands after a call: ` with partitioner_tag="is_forward"`."""

    def __init__(self, values: ValuePrinter, symbols: SymbolPrinter, *, notes: bool) -> None:
        self._values = values
        self._symbols = symbols
        self._keys = NOTES if notes else ()

    def text(self, node: fx.Node) -> str:
        """The notes of a node, or nothing. Bindings of run-time sizes always: code generation needs them."""
        found = []
        bindings = self._plain_bindings(node.meta.get(_BINDINGS) or {})
        if bindings:
            found.append(f"{_BINDINGS}={self._values.text(bindings)}")
        for key in self._keys:
            if key in node.meta and _is_plain(node.meta[key]):
                found.append(f"{key}={self._values.text(node.meta[key])}")
        return f" with {', '.join(found)}" if found else ""

    def _plain_bindings(self, bindings: dict[Any, Any]) -> dict[str, Any]:
        plain = {self._symbols.name_in_use(symbol): _torch.binding_path(path) for symbol, path in bindings.items()}
        return {name: path for name, path in plain.items() if name is not None and path is not None}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(inner) for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return type(value) in (list, tuple) and all(_is_plain(inner) for inner in value)
    return value is None or type(value) in (bool, int, float, str)


def read_notes(cursor: Cursor, values: ValueReader, symbols: SymbolReader) -> dict[str, Any]:
    """The metadata after the word `with`."""
    metadata: dict[str, Any] = {}
    while True:
        start, key = cursor.position, cursor.take_kind("word", "the name of a note")
        cursor.expect("=")
        value = values.read()
        if key == _BINDINGS:
            value = _read_bindings(cursor, start, value, symbols)
        elif key not in NOTES:
            raise cursor.error(f"one of {', '.join((*NOTES, _BINDINGS))}", at=start)
        metadata[key] = value
        if not cursor.accept(","):
            return metadata


def _read_bindings(cursor: Cursor, start: int, plain: Any, symbols: SymbolReader) -> dict[Any, Any]:
    try:
        bindings = {symbols.named(name): _torch.binding_keys(path) for name, path in plain.items()}
    except (AttributeError, TypeError) as problem:
        raise cursor.error('bindings such as `{"u0": ["size", 0]}` of declared symbols', at=start) from problem
    if None in bindings.values() or None in bindings:
        raise cursor.error('bindings such as `{"u0": ["size", 0]}` of declared symbols', at=start)
    return bindings
