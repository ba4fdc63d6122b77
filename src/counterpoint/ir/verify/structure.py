"""What operators that only move, scale or cast elements do to the elements of a tensor."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node

from counterpoint.ir import metadata, ops
from counterpoint.ir.verify.flat import Flat, beside, flat
from counterpoint.ir.verify.reader import Handler, Reader, name_of
from counterpoint.ir.verify.sizes import Size, UndecidedError, divide, exact, numel, product, tidy
from counterpoint.ir.verify.store import Window
from counterpoint.ir.verify.terms import factor_of


def _shape(node: Node) -> list[Size]:
    return [exact(size) for size in metadata.tensor_of(node).shape]


def _dtype(node: Node) -> torch.dtype:
    return metadata.tensor_of(node).dtype


def number_of(value: Any) -> Size:
    """An argument that is a size."""
    value = metadata.value_of(value) if isinstance(value, Node) else value
    if not isinstance(value, (int, torch.SymInt)):
        raise UndecidedError
    return exact(value)


def _reshape(reader: Reader, node: Node) -> None:
    reader.store.is_view(node, Window(ops.argument(node, "self")))


def _reshape_unless_grown(reader: Reader, node: Node) -> None:
    source = ops.argument(node, "self")
    if numel(metadata.tensor_of(node)) != numel(metadata.tensor_of(source)):
        raise UndecidedError
    reader.store.is_view(node, Window(source))


def _view(reader: Reader, node: Node) -> None:
    source = ops.argument(node, "self")
    old, new = _dtype(source), _dtype(node)
    if old == new:
        reader.store.is_view(node, Window(source))
    else:
        reader.store.is_view(node, BitsView(source, reader, old, new))


@dataclass(frozen=True)
class BitsView:
    """A view of the same bytes as another dtype."""

    parent: Node
    reader: Reader
    old: torch.dtype
    new: torch.dtype

    def seen(self, shown: Flat) -> Flat:
        """The parent's bytes in the new dtype."""
        return bits(self.reader, shown, self.old, self.new)

    def written(self, shown: Flat, part: Flat) -> Flat:
        """The parent after a write through the view."""
        return bits(self.reader, part, self.new, self.old)


def bits(reader: Reader, value: Flat, old: torch.dtype, new: torch.dtype) -> Flat:
    """The same bytes as elements of another dtype."""

    def measured(size: Size) -> Size:
        return divide(tidy(size * old.itemsize), new.itemsize)

    cells = (
        c._replace(
            term=reader.terms.bits(c.term, old, new),
            start=measured(c.start),
            length=measured(c.length),
            step=measured(c.step),
        )
        for c in value.cells
    )
    return flat(value.rows, cells)


def _dim(node: Node, rank: int) -> int:
    dim = ops.argument(node, "dim")
    return int(dim) + rank if dim < 0 else int(dim)


def _window(source: Node, dim: int, start: Size, length: Size) -> Window:
    """The view of `length` indices of a dimension."""
    shape = _shape(source)
    inner = product(shape[dim + 1 :])
    if length == 0:
        start = 0
    elif isinstance(start, int) and start < 0:
        start = tidy(shape[dim] + start)
    return Window(source, product(shape[:dim]), tidy(start * inner), tidy((start + length) * inner))


def _slice(reader: Reader, node: Node) -> None:
    source = ops.argument(node, "self")
    if ops.argument(node, "step") != 1:
        raise UndecidedError
    dim = _dim(node, len(_shape(source)))
    start = ops.argument(node, "start")
    reader.store.is_view(node, _window(source, dim, 0 if start is None else number_of(start), _shape(node)[dim]))


def _narrow(reader: Reader, node: Node) -> None:
    source = ops.argument(node, "self")
    dim = _dim(node, len(_shape(source)))
    reader.store.is_view(node, _window(source, dim, number_of(ops.argument(node, "start")), _shape(node)[dim]))


def _select(reader: Reader, node: Node) -> None:
    source = ops.argument(node, "self")
    dim = _dim(node, len(_shape(source)))
    reader.store.is_view(node, _window(source, dim, number_of(ops.argument(node, "index")), 1))


def _split(reader: Reader, node: Node) -> None:
    # The parts are taken by getitem; the list itself holds where each of them lies.
    source = ops.argument(node, "self")
    dim = _dim(node, len(_shape(source)))
    windows: list[Window] = []
    start: Size = 0
    for part in metadata.tensors_of(node):
        length = 1 if name_of(node.target) == "aten::unbind" else exact(part.shape[dim])
        windows.append(_window(source, dim, start, length))
        start = tidy(start + length)
    reader.store.hold(node, tuple(windows))


def _getitem(reader: Reader, node: Node) -> None:
    source, index = node.args
    held = reader.store.value(source) if isinstance(source, Node) else None
    if not isinstance(held, tuple) or not isinstance(index, int):
        raise UndecidedError
    part = held[index]
    if isinstance(part, Window):
        reader.store.is_view(node, part)
    elif isinstance(part, Node):
        reader.store.is_same(node, part)
    else:
        reader.store.hold(node, part)


def _copy(reader: Reader, node: Node) -> None:
    reader.store.hold(node, _converted(reader, ops.argument(node, "self"), node))


def _convert(reader: Reader, node: Node) -> None:
    name = "a" if name_of(node.target).startswith("prims") else "self"
    reader.store.hold(node, _converted(reader, ops.argument(node, name), node))


def _converted(reader: Reader, source: Node, target: Node) -> Flat:
    if _shape(source) != _shape(target):
        raise UndecidedError
    return reader.cast(reader.value(source), _dtype(source), _dtype(target))


def _copy_from(reader: Reader, node: Node) -> None:
    reader.store.hold(node, _converted(reader, ops.argument(node, "src"), node))


def _copy_into(reader: Reader, node: Node) -> None:
    target = ops.argument(node, "self")
    reader.write(target, _converted(reader, ops.argument(node, "src"), target))
    reader.store.is_same(node, target)


def _foreach_copy_into(reader: Reader, node: Node) -> None:
    targets, sources = ops.argument(node, "self"), ops.argument(node, "src")
    new = [_converted(reader, s, t) for s, t in zip(sources, targets, strict=True)]
    for target, value in zip(targets, new, strict=True):
        reader.write(target, value)
    reader.store.hold(node, tuple(targets))


def _scaled(reader: Reader, source: Node, result: torch.Tensor, by: Any, divides: bool) -> Flat:
    usable = isinstance(by, (int, float)) and not isinstance(by, bool) and by != 0 and math.isfinite(by)
    if not usable or _dtype(source) != result.dtype:
        raise UndecidedError
    factor = factor_of(by)
    return reader.scaled(reader.value(source), 1 / factor if divides else factor)


def _scale(reader: Reader, node: Node) -> None:
    name = name_of(node.target)
    source, by = ops.argument(node, "self"), ops.argument(node, "other")
    value = _scaled(reader, source, metadata.tensor_of(node), by, "div" in name)
    if name.endswith("_"):
        reader.write(source, value)
        reader.store.is_same(node, source)
    else:
        reader.store.hold(node, value)


def _foreach_scale(reader: Reader, node: Node) -> None:
    sources = ops.argument(node, "self")
    name, overload = name_of(node.target), name_of(node.target, functional=True).rpartition(".")[2]
    if overload not in ("Scalar", "ScalarList"):
        raise UndecidedError
    by = ops.argument(node, "scalar" if overload == "Scalar" else "scalars")
    factors: Sequence[Any] = by if isinstance(by, (list, tuple)) else [by] * len(sources)
    pairs = zip(sources, factors, strict=True)
    values = [_scaled(reader, s, metadata.tensor_of(s), f, "div" in name) for s, f in pairs]
    if not name.endswith("_"):
        reader.store.hold(node, tuple(values))
        return
    for source, value in zip(sources, values, strict=True):
        reader.write(source, value)
    reader.store.hold(node, tuple(sources))


def _cat(reader: Reader, node: Node) -> None:
    shape = _shape(node)
    dim = _dim(node, len(shape))
    parts = (reader.cast(reader.value(s), _dtype(s), _dtype(node)) for s in ops.argument(node, "tensors"))
    reader.store.hold(node, beside(parts, product(shape[:dim])))


HANDLERS: Mapping[str, Handler] = MappingProxyType(
    {
        str(operator.getitem): _getitem,
        **{
            f"aten::{name}": handler
            for names, handler in (
                ("_unsafe_view reshape flatten unflatten squeeze unsqueeze alias detach", _reshape),
                ("expand", _reshape_unless_grown),
                ("view", _view),
                ("slice", _slice),
                ("narrow", _narrow),
                ("select", _select),
                ("split split_with_sizes chunk unbind", _split),
                ("clone contiguous", _copy),
                ("_to_copy to", _convert),
                ("copy", _copy_from),
                ("copy_", _copy_into),
                ("_foreach_copy_", _foreach_copy_into),
                ("div div_ mul mul_", _scale),
                ("_foreach_div _foreach_div_ _foreach_mul _foreach_mul_", _foreach_scale),
                ("cat stack", _cat),
            )
            for name in names.split()
        },
        "prims::convert_element_type": _convert,
    }
)
"""By qualified name; the overloads of a name differ only in how they write their arguments."""
