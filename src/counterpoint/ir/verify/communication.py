"""What collectives do to the elements of a tensor.

Reductions and broadcasts act on every element alone, gathers put whole blocks one after another, reduce-scatters and
all-to-alls cut their input into blocks. So the collective of a packed tensor is the packed collectives of its members.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from torch.fx import Node

from counterpoint.ir import metadata, ops
from counterpoint.ir.effects import Effect
from counterpoint.ir.groups import group_of
from counterpoint.ir.ops import Form, Kind, OpSpec
from counterpoint.ir.verify.blocks import blocks, gathered, gathered_pack
from counterpoint.ir.verify.flat import Cell, Flat, flat, spelled_out, whole
from counterpoint.ir.verify.reader import Handler, Reader, name_of
from counterpoint.ir.verify.sizes import Size, UndecidedError, divide, numel, ratio, tidy

Meaning = Callable[[Reader, Node, OpSpec, Flat, Any], Flat]
"""The result, given the input and how many times as large the result is."""


def _wait(reader: Reader, node: Node) -> None:
    reader.store.is_same(node, ops.argument(node, "tensor"))


def collective(reader: Reader, node: Node) -> None:
    """Read one start. Its result counts as there at once: early readers are found elsewhere."""
    spec = ops.spec_of(node.target)
    if spec is None:
        raise UndecidedError
    meaning = _MEANING.get(spec.kind)
    if meaning is None:
        _unknown(reader, node, spec)
        return
    try:
        _apply(reader, node, spec, meaning)
    except UndecidedError:
        _unknown(reader, node, spec)


def _apply(reader: Reader, node: Node, spec: OpSpec, meaning: Meaning) -> None:
    sources = ops.tensors(node, spec.payload)
    received = _receivers(node, spec)
    tensors = metadata.tensors_of(node) if received is None else [metadata.tensor_of(n) for n in received]
    values: list[Flat] = []
    for source, tensor in zip(sources, tensors, strict=True):
        before = numel(metadata.tensor_of(source))
        growth = Fraction(1) if before == 0 else ratio(numel(tensor), before)
        values.append(meaning(reader, node, spec, reader.value(source), growth))
    if received is None:
        reader.store.hold(node, tuple(values) if spec.coalesced else values[0])
        return
    for target, value in zip(received, values, strict=True):
        reader.write(target, value)
    if spec.coalesced:
        reader.store.hold(node, tuple(received))
    else:
        reader.store.is_same(node, received[0])


def _receivers(node: Node, spec: OpSpec) -> tuple[Node, ...] | None:
    """The buffers that results are written to; None when the results are new."""
    if spec.form is Form.FUNCTIONAL:
        return None
    if spec.form is Form.IN_PLACE:
        return ops.tensors(node, spec.payload)
    names = tuple(name for name in spec.written if name.startswith("out"))
    return ops.tensors(node, names[:1])


def group_key(reader: Reader, node: Node, spec: OpSpec) -> Hashable:
    """The group of a collective, as something that both graphs know."""
    key = group_of(ops.argument(node, spec.group)).key if spec.group else "peer"
    return ("node", reader.store.value(key)) if isinstance(key, Node) else key


def _ranks(reader: Reader, group: Hashable) -> int | None:
    return len(reader.groups[group]) if isinstance(group, str) and group in reader.groups else None


def _whole_number(growth: Any) -> int:
    if isinstance(growth, (int, Fraction)) and growth == int(growth):
        return int(growth)
    raise UndecidedError


def _count(reader: Reader, node: Node, result: int, cell: Cell, rows: Size, of: Size) -> None:
    length = tidy(cell.length * rows)
    reader.count(reader.terms.bare(result), 1 if length == of else ratio(length, of), node)


def _all_reduce(reader: Reader, node: Node, spec: OpSpec, value: Flat, growth: Any) -> Flat:
    group, op = group_key(reader, node, spec), ops.argument(node, spec.reduce_op or "").lower()
    terms, cells = reader.terms, []
    for cell in value.cells:
        size = terms.numel[cell.term]
        term = terms.reduce("all_reduce", group, op, _ranks(reader, group), cell.term, size, node.name)
        _count(reader, node, term, cell, value.rows, size)
        cells.append(cell._replace(term=term))
    return flat(value.rows, cells)


def _broadcast(reader: Reader, node: Node, spec: OpSpec, value: Flat, growth: Any) -> Flat:
    attributes = (group_key(reader, node, spec), ops.argument(node, spec.root or ""))
    cells = []
    for cell in value.cells:
        term = reader.terms.move("broadcast", attributes, cell.term, 1, node.name)
        _count(reader, node, term, cell, value.rows, reader.terms.numel[term])
        cells.append(cell._replace(term=term))
    return flat(value.rows, cells)


def _all_gather(reader: Reader, node: Node, spec: OpSpec, value: Flat, growth: Any) -> Flat:
    group = group_key(reader, node, spec)
    ranks = _whole_number(growth)
    undone = gathered_pack(reader, node, group, _ranks(reader, group), value)
    if undone is not None:
        return undone
    try:
        line = spelled_out(value)
    except UndecidedError:
        line = reader.packed(value, node)
    cells = []
    for cell in line.cells:
        size = reader.terms.numel[cell.term]
        term = reader.terms.move("all_gather", (group,), cell.term, ranks, node.name)
        _count(reader, node, term, cell, 1, size)
        cells.append(cell._replace(term=term, step=size))
    return gathered(reader, ranks, cells)


def _reduce_scatter(reader: Reader, node: Node, spec: OpSpec, value: Flat, growth: Any) -> Flat:
    group = group_key(reader, node, spec)
    op = ops.argument(node, spec.reduce_op).lower() if spec.reduce_op else "sum"
    ranks = _whole_number(1 / growth if growth else 1)
    cells = []
    for cell in blocks(reader, node, value, ranks).cells:
        size = divide(reader.terms.numel[cell.term], ranks)
        term = reader.terms.reduce("reduce_scatter", group, op, ranks, cell.term, size, node.name)
        _count(reader, node, term, cell, 1, size)
        cells.append(cell._replace(term=term, step=0))
    return flat(1, cells)


def _all_to_all(reader: Reader, node: Node, spec: OpSpec, value: Flat, growth: Any) -> Flat:
    group = group_key(reader, node, spec)
    if "shard_dim" in name_of(node.target):
        return _opaque(reader, node, group)
    sizes = (*ops.argument(node, "input_split_sizes"), *ops.argument(node, "output_split_sizes"))
    ranks = len(sizes) // 2
    if any(not isinstance(size, int) or size != sizes[0] for size in sizes):
        return _opaque(reader, node, group)
    cut = blocks(reader, node, value, ranks)
    cells = []
    for cell in cut.cells:
        term = reader.terms.move("all_to_all", (group,), cell.term, 1, node.name)
        _count(reader, node, term, cell, ranks, reader.terms.numel[term])
        cells.append(cell._replace(term=term))
    return flat(cut.rows, cells)


def _opaque(reader: Reader, node: Node, group: Hashable) -> Flat:
    call = reader.terms.all[reader.call(node, Effect.PURE)]
    size = numel(metadata.tensor_of(node))
    term = reader.terms.number("communicate", (group, *call.attributes), call.operands, size, node.name)
    reader.count(term, 1, node)
    return whole(term, size)


def _unknown(reader: Reader, node: Node, spec: OpSpec) -> None:
    """Point-to-point, peer memory and fused operators: a term of their own, and a trace of what they send."""
    ordered = spec.kind in (Kind.SEND, Kind.RECV, Kind.P2P_BATCH, Kind.PEER_MEMORY)
    call = reader.terms.all[reader.call(node, Effect.BARRIER if ordered else Effect.COLLECTIVE)]
    group = group_key(reader, node, spec)
    term = reader.terms.number("communicate", (group, *call.attributes), call.operands, 1, node.name)
    reader.count(term, 1, node)
    reader.finish(node, term, ops.tensors(node, spec.written))
    if ordered:
        reader.effects.append((f"what {spec.name} sends", node.name, whole(term, 1)))


_MEANING: Mapping[Kind, Meaning] = MappingProxyType(
    {
        Kind.ALL_REDUCE: _all_reduce,
        Kind.BROADCAST: _broadcast,
        Kind.ALL_GATHER: _all_gather,
        Kind.REDUCE_SCATTER: _reduce_scatter,
        Kind.ALL_TO_ALL: _all_to_all,
    }
)

HANDLERS: Mapping[str, Handler] = MappingProxyType(
    {name: _wait if row.kind is Kind.WAIT else collective for name, row in ops.TABLE.items()}
)
