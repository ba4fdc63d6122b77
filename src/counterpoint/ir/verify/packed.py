"""What the packing operators (`counterpoint.ir.packing`) do to the elements of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch.fx import Node

from counterpoint.ir import metadata, ops
from counterpoint.ir.verify.flat import Flat, beside, columns, flat
from counterpoint.ir.verify.reader import Handler, Reader
from counterpoint.ir.verify.sizes import Size, divide, exact, numel, product, tidy
from counterpoint.ir.verify.structure import bits, number_of

_NOTHING = flat(1, ())


def _slice(value: Flat, rows: Size, start: Size, length: Size) -> Flat:
    return columns(value, rows, start, tidy(start + length)) if length != 0 else _NOTHING


def _packed(reader: Reader, value: Node, target: torch.dtype, converts: bool) -> Flat:
    whole, own = reader.value(value), metadata.tensor_of(value).dtype
    if own == target:
        return whole
    return reader.cast(whole, own, target) if converts else bits(reader, whole, own, target)


def _pack_rows(reader: Reader, node: Node) -> None:
    target, converts = metadata.tensor_of(node).dtype, ops.argument(node, "dtype") is not None
    values = [_packed(reader, value, target, converts) for value in ops.argument(node, "values")]
    reader.store.hold(node, beside(values, number_of(ops.argument(node, "rows"))))


def _unpack_rows(reader: Reader, node: Node) -> None:
    packed = ops.argument(node, "packed")
    whole, own, rows = reader.value(packed), metadata.tensor_of(packed).dtype, number_of(ops.argument(node, "rows"))
    results: list[Flat] = []
    start: Size = 0
    for result in metadata.tensors_of(node):
        width = divide(_measured(numel(result), result.dtype, own), rows)
        results.append(bits(reader, _slice(whole, rows, start, width), own, result.dtype))
        start = tidy(start + width)
    reader.store.hold(node, tuple(results))


def _parts(node: Node, tensors: Sequence[torch.Tensor], packed: torch.dtype) -> list[list[Size]]:
    """By tensor and rank: how many elements of the packed tensor each part has."""
    ranks, given = ops.argument(node, "ranks"), [number_of(part) for part in ops.argument(node, "parts")]
    table = [given[i * ranks : (i + 1) * ranks] for i in range(len(tensors))]
    rows = [product(map(exact, tensor.shape[1:])) for tensor in tensors]
    return [
        [_measured(tidy(part * size), tensor.dtype, packed) for part in parts]
        for parts, size, tensor in zip(table, rows, tensors, strict=True)
    ]


def _measured(count: Size, own: torch.dtype, packed: torch.dtype) -> Size:
    return divide(tidy(count * own.itemsize), packed.itemsize)


def _pack_parts(reader: Reader, node: Node) -> None:
    values, target = ops.argument(node, "values"), metadata.tensor_of(node).dtype
    parts = _parts(node, [metadata.tensor_of(value) for value in values], target)
    wholes = [_packed(reader, value, target, False) for value in values]
    pieces = [_cut(whole, widths) for whole, widths in zip(wholes, parts, strict=True)]
    reader.store.hold(node, beside((member[rank] for rank in range(len(parts[0])) for member in pieces), 1))


def _cut(whole: Flat, widths: Sequence[Size]) -> list[Flat]:
    pieces: list[Flat] = []
    start: Size = 0
    for width in widths:
        pieces.append(_slice(whole, 1, start, width))
        start = tidy(start + width)
    return pieces


def _unpack_parts(reader: Reader, node: Node) -> None:
    packed = ops.argument(node, "packed")
    own, results = metadata.tensor_of(packed).dtype, metadata.tensors_of(node)
    parts = _parts(node, results, own)
    ranks, members = len(parts[0]), len(parts)
    pieces = _cut(reader.value(packed), [member[rank] for rank in range(ranks) for member in parts])
    joined = (beside(pieces[index::members], 1) for index in range(members))
    held = (bits(reader, value, own, result.dtype) for value, result in zip(joined, results, strict=True))
    reader.store.hold(node, tuple(held))


HANDLERS: Mapping[str, Handler] = MappingProxyType(
    {
        "counterpoint::pack_rows": _pack_rows,
        "counterpoint::unpack_rows": _unpack_rows,
        "counterpoint::pack_parts": _pack_parts,
        "counterpoint::unpack_parts": _unpack_parts,
    }
)
"""By qualified name."""
