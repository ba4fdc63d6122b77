"""What a node is known to produce (`meta["val"]`) as text and back: `f32[64, 128]{1, 64}+8@cuda:0`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from counterpoint import _torch
from counterpoint.errors import GraphError
from counterpoint.ir.text import words
from counterpoint.ir.text.lex import Cursor, quote
from counterpoint.ir.text.symbols import Symbolic, SymbolPrinter, SymbolReader
from counterpoint.ir.text.values import GroupName, Opaque, ValueReader, object_text

_CPU = torch.device("cpu")
_SYMBOLIC: dict[type, str] = {torch.SymInt: "sym", torch.SymFloat: "symfloat", torch.SymBool: "symbool"}
_PLAIN = (int, bool, float)
_LIMIT = 2**63


class TypePrinter:
    """Writes values that nodes produce."""

    def __init__(self, symbols: SymbolPrinter) -> None:
        self._symbols = symbols

    def text(self, value: Any) -> str:
        """The text of a produced value."""
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if type(value) in _SYMBOLIC:
            return f"{_SYMBOLIC[type(value)]}({self._symbols.text(value)})"
        if type(value) in _PLAIN:
            return f"{type(value).__name__}({value!r})"
        if value is None:
            return "None"
        if isinstance(value, (tuple, list)):
            inner = ", ".join(self.text(item) for item in value)
            if isinstance(value, list):
                return f"[{inner}]"
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, str) and not isinstance(value, GroupName):
            return f"str({quote(value)})"
        return object_text(value) or f"object({quote(f'{type(value).__module__}.{type(value).__qualname__}')})"

    def tensor(self, value: torch.Tensor) -> str:
        """Dtype and shape; strides, offset, device and flags only where they are not the usual ones."""
        shape = self._numbers(value.shape)
        text = f"{words.DTYPE_WORDS[value.dtype]}[{shape}]"
        flags = ""
        if value.layout is torch.strided:
            if not self._is_contiguous(value.shape, value.stride()):
                text += f"{{{self._numbers(value.stride())}}}"
            offset = value.storage_offset()
            if not isinstance(offset, int) or offset:
                text += f"+({self._symbols.text(offset)})" if isinstance(offset, Symbolic) else f"+{offset}"
        elif value.layout is torch.sparse_coo:
            flags += " sparse_coo"
        else:
            raise GraphError(
                f"a tensor of layout {value.layout} cannot be written as text",
                next_step="the text form holds strided and sparse COO tensors",
            )
        if value.device != _CPU:
            text += f"@{value.device}"
        return text + flags + (" requires_grad" if value.requires_grad else "")

    def _numbers(self, numbers: Sequence[Any]) -> str:
        return ", ".join([str(n) if type(n) is int else self._symbols.text(n) for n in numbers])

    def _is_contiguous(self, shape: Sequence[Any], strides: Sequence[Any]) -> bool:
        if all(type(n) is int for n in shape) and all(type(n) is int for n in strides):
            return tuple(strides) == _plain_strides(shape)
        expected = contiguous_strides([self._symbols.sympy_of(n) for n in shape])
        return [self._symbols.sympy_of(n) for n in strides] == expected


def _plain_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def contiguous_strides(shape: Sequence[Any]) -> list[Any]:
    """Row-major strides as expressions; a size that is known to be zero counts as one, as torch has it."""
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (1 if size == 0 else size)
    return strides[::-1]


class TypeReader:
    """Reads produced values and makes fake tensors of them. Every tensor gets a storage of its own."""

    def __init__(self, cursor: Cursor, symbols: SymbolReader, mode: _torch.FakeTensorMode) -> None:
        self._cursor = cursor
        self._symbols = symbols
        self._mode = mode
        self._values = ValueReader(cursor, symbols, {})
        self._records: dict[str, Any] = {}
        """`tensor_meta` by type text: immutable, and slow to compute for symbolic shapes."""

    def read_metadata(self) -> dict[str, Any]:
        """Read one produced value as node metadata: `val`, and `tensor_meta` for a tensor."""
        start, value = self._cursor.position, self.read()
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return {"val": value}
        text = self._cursor.since(start)
        if text not in self._records:
            self._records[text] = _torch.tensor_metadata(value)
        return {"val": value, "tensor_meta": self._records[text]}

    def read(self) -> Any:
        """Read one produced value."""
        cursor = self._cursor
        if cursor.accept("("):
            return tuple(self._read_items(")"))
        if cursor.accept("["):
            return self._read_items("]")
        if cursor.accept("None"):
            return None
        start, word = cursor.position, cursor.take_kind("word", "a type, such as `f32[4, 8]` or `int(s0)`")
        if word in words.DTYPES and cursor.at("["):
            return self._read_tensor(words.DTYPES[word], start)
        if word in _READERS and cursor.accept("("):
            value = _READERS[word](self)
            cursor.close(")")
            return value
        raise cursor.error("a type, such as `f32[4, 8]`, `int(s0)`, `(f32[2], None)`", at=start)

    def _read_items(self, close: str) -> list[Any]:
        items = []
        while self._cursor.items(close):
            items.append(self.read())
            self._cursor.comma(close)
        return items

    def _read_tensor(self, dtype: torch.dtype, start: int) -> torch.Tensor:
        cursor = self._cursor
        shape = self._read_sizes("[", "]")
        strides = self._read_sizes("{", "}") if cursor.at("{") else contiguous_strides(shape)
        if len(strides) != len(shape):
            raise cursor.error(f"{len(shape)} strides for {len(shape)} dimensions", at=start)
        offset = self._read_offset() if cursor.accept("+") else 0
        device = self._read_device() if cursor.accept("@") else _CPU
        sparse, grad = cursor.accept("sparse_coo"), cursor.accept("requires_grad")
        try:
            meta = self._sparse(shape, dtype) if sparse else self._strided(shape, strides, offset, dtype)
            made = _torch.fake_tensor(self._mode, meta, device)
            return made.requires_grad_() if grad else made
        except (RuntimeError, ValueError, TypeError, OverflowError) as problem:
            raise cursor.error(f"a tensor that can exist ({_first_line(problem)})", at=start) from problem

    def _strided(self, shape: list[Any], strides: list[Any], offset: Any, dtype: torch.dtype) -> torch.Tensor:
        sizes, steps = [self._symbols.integer(n) for n in shape], [self._symbols.integer(n) for n in strides]
        if offset == 0:
            return torch.empty_strided(sizes, steps, dtype=dtype, device="meta")
        steps_taken = 0 if 0 in shape else sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        reach = offset + steps_taken + 1
        base = torch.empty_strided([self._symbols.integer(reach)], [1], dtype=dtype, device="meta")
        return base.as_strided(sizes, steps, self._symbols.integer(offset))

    def _sparse(self, shape: list[Any], dtype: torch.dtype) -> torch.Tensor:
        sizes = [self._symbols.integer(n) for n in shape]
        return torch.empty(sizes, dtype=dtype, device="meta", layout=torch.sparse_coo)

    def _read_sizes(self, opening: str, closing: str) -> list[Any]:
        cursor = self._cursor
        cursor.expect(opening)
        sizes = []
        while cursor.items(closing):
            start, size = cursor.position, self._symbols.read_whole(cursor)
            if isinstance(size, int) and not 0 <= size < _LIMIT:
                raise cursor.error("a size from 0 to 2**63 - 1", at=start)
            sizes.append(size)
            cursor.comma(closing)
        return sizes

    def _read_offset(self) -> Any:
        if self._cursor.accept("("):
            offset = self._symbols.read(self._cursor)
            self._cursor.close(")")
            return offset
        return self._symbols.read_whole(self._cursor)

    def _read_device(self) -> torch.device:
        cursor, start = self._cursor, self._cursor.position
        text = cursor.take_kind("word", "a device, such as `cuda:0`")
        if cursor.accept(":"):
            text += f":{cursor.take_kind('number', 'the number of the device')}"
        try:
            return torch.device(text)
        except RuntimeError as problem:
            raise cursor.error("a device that torch knows, such as `cuda:0`", at=start) from problem

    def _read_symbolic(self, word: str) -> Any:
        return self._symbols.read_number(self._cursor, word)

    def _read_str(self) -> str:
        return self._cursor.string()

    def _read_plain(self, kind: type) -> Any:
        start, value = self._cursor.position, self._values.read()
        if type(value) is not kind:
            raise self._cursor.error(f"a plain {kind.__name__}", at=start)
        return value


def _first_line(problem: Exception) -> str:
    return re.split(r"[\n.]", str(problem))[0]


_READERS: dict[str, Callable[[TypeReader], Any]] = {
    "sym": lambda reader: reader._read_symbolic("sym"),
    "symfloat": lambda reader: reader._read_symbolic("symfloat"),
    "symbool": lambda reader: reader._read_symbolic("symbool"),
    "int": lambda reader: reader._read_plain(int),
    "float": lambda reader: reader._read_plain(float),
    "bool": lambda reader: reader._read_plain(bool),
    "str": TypeReader._read_str,
    "group": lambda reader: GroupName(reader._read_str()),
    "object": lambda reader: Opaque(reader._read_str()),
}
