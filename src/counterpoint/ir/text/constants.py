"""Tensors that a graph carries: small ones stand in the text with their values, larger ones by checksum."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch

from counterpoint import _torch
from counterpoint.ir.text.lex import Cursor
from counterpoint.ir.text.types import TypeReader
from counterpoint.ir.text.values import ValuePrinter, ValueReader

_INLINE_ELEMENTS = 16


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The elements of a tensor in row-major order, bit for bit."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1).contiguous()
    if flat.numel() == 0:
        return b""
    raw = bytearray(flat.numel() * flat.element_size())
    torch.frombuffer(raw, dtype=torch.uint8).copy_(flat.view(torch.uint8))
    return bytes(raw)


def checksum(data: bytes) -> str:
    """The name of a constant's data."""
    return hashlib.sha256(data).hexdigest()


def stored_form(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as it can be loaded again: one whose elements overlap or have gaps becomes row-major."""
    return tensor if is_fake(tensor) or _is_dense(tensor) else tensor.detach().contiguous()


def _is_dense(tensor: torch.Tensor) -> bool:
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != reach:
            return tensor.numel() == 0
        reach *= size
    return tensor.storage_offset() == 0


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no elements to write."""
    return isinstance(tensor, _torch.FakeTensor) or tensor.is_meta


def constant_text(tensor: torch.Tensor, values: ValuePrinter) -> str:
    """What stands right of `=`: the values, their bytes, the name of their data, or `fake`."""
    if is_fake(tensor):
        return "fake"
    data = tensor_bytes(tensor)
    if tensor.numel() > _INLINE_ELEMENTS:
        return f'data("{checksum(data)}")'
    listed = _as_list(tensor)
    if listed is not None and tensor_bytes(torch.tensor(listed, dtype=tensor.dtype)) == data:
        return values.text(listed)
    # A payload of a NaN, or a dtype that Python has no numbers for.
    return f'hex("{data.hex()}")'


def _as_list(tensor: torch.Tensor) -> list[Any] | None:
    try:
        listed = [_plain_nan(x) for x in tensor.detach().cpu().reshape(-1).tolist()]
        torch.tensor(listed, dtype=tensor.dtype)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return listed


def _plain_nan(number: Any) -> Any:
    """The number as its text reads back: a NaN loses its payload there."""
    if isinstance(number, complex):
        return complex(_plain_nan(number.real), _plain_nan(number.imag))
    return math.nan if number != number else number


class ConstantReader:
    """Reads `attr` lines, from the type on."""

    def __init__(self, cursor: Cursor, types: TypeReader, values: ValueReader, data: Mapping[str, bytes]) -> None:
        self._cursor = cursor
        self._types = types
        self._values = values
        self._data = data

    def read(self, *, parameter: bool) -> Any:
        """`: type = values`, or `= value` for what is not a tensor."""
        cursor = self._cursor
        if not cursor.accept(":"):
            cursor.expect("=")
            return self._values.read()
        start, fake = cursor.position, self._types.read()
        if not isinstance(fake, torch.Tensor):
            raise cursor.error("the type of a tensor", at=start)
        cursor.expect("=")
        tensor = fake if cursor.accept("fake") else self._filled(fake)
        return torch.nn.Parameter(tensor, requires_grad=fake.requires_grad) if parameter else tensor

    def _filled(self, fake: torch.Tensor) -> torch.Tensor:
        """A real tensor of this type. One whose device is absent here is held on the CPU."""
        cursor, start = self._cursor, self._cursor.position
        if any(type(n) is not int for n in (*fake.shape, *fake.stride(), fake.storage_offset())):
            raise cursor.error("`fake`: a tensor of symbolic shape has no values", at=start)
        if not _is_dense(fake):
            raise cursor.error("a constant without gaps and offset", at=start)
        data = self._read_data(fake.numel(), fake.dtype)
        wanted = fake.numel() * fake.element_size()
        if len(data) != wanted:
            raise cursor.error(f"{wanted} bytes of values for this type, not {len(data)}", at=start)
        tensor = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype)
        if data:
            elements = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(fake.dtype)
            tensor.copy_(elements.reshape(fake.shape))
        with contextlib.suppress(RuntimeError, AssertionError):
            tensor = tensor.to(fake.device)
        return tensor.requires_grad_() if fake.requires_grad else tensor

    def _read_data(self, elements: int, dtype: torch.dtype) -> bytes:
        cursor, start = self._cursor, self._cursor.position
        if cursor.at("["):
            return self._listed(start, elements, dtype)
        word = cursor.take_kind("word", "`[values]`, `hex(...)`, `data(...)` or `fake`")
        cursor.expect("(")
        text = cursor.string()
        cursor.close(")")
        if word == "hex":
            try:
                return bytes.fromhex(text)
            except ValueError as problem:
                raise cursor.error("hexadecimal digits", at=start) from problem
        if word != "data":
            raise cursor.error("`[values]`, `hex(...)`, `data(...)` or `fake`", at=start)
        if text not in self._data:
            raise cursor.error(
                "data that came with the text",
                at=start,
                problem=f"the values of this constant (sha256 {text[:12]}...) are not part of the text",
                next_step="read the whole file with `load_graph`, or hand over `constants_of` of the printed graph",
            )
        return self._data[text]

    def _listed(self, start: int, elements: int, dtype: torch.dtype) -> bytes:
        listed = self._values.read()
        try:
            tensor = torch.tensor(listed, dtype=dtype).reshape(-1)
        except (RuntimeError, TypeError, ValueError, OverflowError) as problem:
            raise self._cursor.error(f"values of this type ({problem})", at=start) from problem
        if tensor.numel() != elements:
            raise self._cursor.error(f"{elements} values, not {tensor.numel()}", at=start)
        return tensor_bytes(tensor)
