"""What the merged collectives of inductor's bucketing consist of, operator by operator.

A body is written once, over `counterpoint.passes.bodies.Emit`: the functions that the door offers run it on tensors,
and the door's merges write it into a graph without tracing, with the operators that tracing it would give.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch._inductor.fx_passes import bucketing as inductors
from torch.fx import Node

from counterpoint._torch import FakeTensor, is_constant_sized, size_hint, torch_version
from counterpoint.ir import metadata
from counterpoint.passes import bodies, packed_bodies
from counterpoint.passes.bodies import ATEN, C10D, Launched, Value, gathered, product, total
from counterpoint.passes.emitting import GraphEmit


class Writer(bodies.Emit, Protocol):
    """An `Emit` that also knows devices."""

    def device(self, value: Value) -> torch.device:
        """Where a tensor lies."""


class Eager(bodies.Eager):
    """Runs each operator at once."""

    def device(self, value: torch.Tensor) -> torch.device:
        """Where the tensor lies."""
        return value.device


@dataclass(frozen=True)
class Recorder(GraphEmit):
    """Writes into a graph, reshapes as tracing writes them, and remembers what it wrote."""

    made: list[Node] = field(default_factory=list)

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        if target is ATEN.reshape.default:
            return self._reshape(*args)
        node = super().__call__(target, *args, **kwargs)
        self.made.append(node)
        return node

    def _reshape(self, value: Node, shape: Sequence[Any]) -> Node:
        """A view where that is one for certain, or a copy in row-major order and a view of that."""
        tensor = metadata.tensor_of(value)
        if not (isinstance(tensor, FakeTensor) and is_constant_sized(tensor)):
            node = super().__call__(ATEN.reshape.default, value, list(shape))
            self.made.append(node)
            return node
        if tensor.is_contiguous():
            return self(ATEN.view.default, value, list(shape))
        copy = self(ATEN.clone.default, value, memory_format=torch.contiguous_format)
        return self(ATEN._unsafe_view.default, copy, list(shape))

    def device(self, value: Node) -> torch.device:
        """Where the node's tensor lies."""
        return metadata.tensor_of(value).device


Body = Callable[..., Launched]
"""Called with a `Writer`, the inputs, and what inductor's function of the same name takes behind these."""


def all_reduce(
    emit: Writer, ins: Sequence[Value], group_name: Any, reduce_op: str, dtype: torch.dtype, device: torch.device
) -> Launched:
    """Side by side, one all-reduce, views of the result."""
    return bodies.all_reduce(emit, ins, reduce_op=reduce_op, group=group_name)


def reduce_scatter(
    emit: Writer,
    ins: Sequence[Value],
    group_name: Any,
    group_size: int,
    reduce_op: str,
    dtype: torch.dtype,
    device: torch.device,
) -> Launched:
    """Row by row side by side, one reduce-scatter, views of the result."""
    return bodies.reduce_scatter(emit, ins, reduce_op=reduce_op, group=group_name, ranks=group_size)


def reduce_scatter_custom_ops(
    emit: Writer,
    ins: Sequence[Value],
    group_name: Any,
    group_size: int,
    reduce_op: str,
    dtype: torch.dtype,
    device: torch.device,
) -> Launched:
    """As `reduce_scatter`, packed by one operator."""
    pack = torch_operator("_pre_bucket_reduce_scatter")

    def packed(emit: bodies.Emit, values: Sequence[Value], rows: int) -> Value:
        if pack is None:
            return packed_bodies.packing_to(None)(emit, values, rows)
        return emit(pack, list(values), rows)

    return bodies.reduce_scatter(emit, ins, reduce_op=reduce_op, group=group_name, ranks=group_size, pack=packed)


def reduce_scatter_coalesced(
    emit: Writer,
    ins: Sequence[Value],
    group_name: Any,
    group_size: int,
    reduce_op: str,
    dtype: torch.dtype,
    device: torch.device,
) -> Launched:
    """The coalesced operator, which packs nothing."""
    flat = [emit(ATEN.reshape.default, value, [-1]) for value in ins]
    shapes = [[bodies.quotient(emit, first, group_size), *rest] for first, *rest in map(emit.shape, ins)]
    many = C10D.reduce_scatter_tensor_coalesced.default
    launched = bodies.coalesced(emit, flat, many, reduce_op, group_size, group_name)

    def unpack(later: bodies.Emit, waited: list[Value]) -> list[Value]:
        return [later(ATEN.reshape.default, part, shape) for part, shape in zip(waited, shapes, strict=True)]

    return Launched(launched.started, unpack)


def all_gather(
    emit: Writer,
    ins: Sequence[Value],
    group_name: Any,
    group_size: int,
    dtype: torch.dtype,
    out_dtypes: Sequence[torch.dtype],
    rank: int,
) -> Launched:
    """Written side by side into this rank's part of the gathered tensor, which is then gathered in place."""
    if len(set(out_dtypes)) > 1:
        return _as_bytes(emit, ins, group_name, group_size, out_dtypes)
    cells = _of_one_type(emit, ins, out_dtypes)
    sizes = [product(emit, emit.shape(value)) for value in cells]
    numel = total(emit, sizes)
    whole = _empty(emit, cells[0], product(emit, [numel, group_size]), dtype)
    slot = _slot(emit, whole, numel, rank)
    flat = [emit(ATEN.reshape.default, value, [-1]) for value in cells]
    filled = emit(ATEN.copy_.default, slot, emit(ATEN.cat.default, flat))
    return _gather_into(emit, filled, whole, ins, sizes, group_name, group_size)


def all_gather_functional(
    emit: Writer,
    ins: Sequence[Value],
    group_name: Any,
    group_size: int,
    dtype: torch.dtype,
    out_dtypes: Sequence[torch.dtype],
    rank: int | None,
    use_fsdp_ag_copy_in: bool = False,
) -> Launched:
    """Side by side in a tensor of their own, so that nothing is overwritten and no rank occurs."""
    if len(set(out_dtypes)) > 1:
        return _as_bytes(emit, ins, group_name, group_size, out_dtypes)
    cells = [bodies.cast(emit, value, wanted) for value, wanted in zip(ins, out_dtypes, strict=True)]
    sizes = [product(emit, emit.shape(value)) for value in cells]
    numel = total(emit, sizes)
    whole = _empty(emit, cells[0], product(emit, [numel, group_size]), dtype)
    flat = [emit(ATEN.reshape.default, value, [-1]) for value in cells]
    if use_fsdp_ag_copy_in:
        made = emit(torch.ops.fsdp.all_gather_copy_in.default, flat, whole, sizes, numel, rank)
        packed, whole = emit(operator.getitem, made, 0), emit(operator.getitem, made, 1)
    else:
        packed = emit(ATEN.cat.default, flat)
    return _gather_into(emit, packed, whole, ins, sizes, group_name, group_size)


def all_gather_custom_ops(
    emit: Writer,
    ins: Sequence[Value],
    group_name: Any,
    group_size: int,
    dtype: torch.dtype,
    out_dtypes: Sequence[torch.dtype],
    rank: int,
) -> Launched:
    """Packed and converted by one operator, each member in its own element type."""
    numels = [product(emit, emit.shape(value)) for value in ins]
    pack = torch_operator("_pre_bucket_all_gather")
    if pack is None or not _is_aligned(numels, dtype, out_dtypes):
        return _as_bytes(emit, ins, group_name, group_size, out_dtypes)
    sizes = [_in_units(emit, n, wanted, dtype) for n, wanted in zip(numels, out_dtypes, strict=True)]
    given = {
        "ag_ins": list(ins),
        "group_size": group_size,
        "group_name": group_name,
        "dtype": dtype,
        "out_dtype_ints": [inductors._ALL_DTYPES.index(wanted) for wanted in out_dtypes],
        "rank": rank,
        "foreach_group_indices": foreach_groups(emit, ins, out_dtypes),
    }
    # What the operator takes differs between versions of torch, and is called the same in all.
    arguments = [given[argument.name] for argument in pack._schema.arguments]
    # Tracing leaves a default out.
    whole = emit(pack, *(arguments[:-1] if arguments[-1] is None else arguments))
    slot = _slot(emit, whole, total(emit, sizes), rank)
    return _gather_into(emit, slot, whole, ins, sizes, group_name, group_size, out_dtypes)


def _gather_into(
    emit: Writer,
    sent: Value,
    whole: Value,
    ins: Sequence[Value],
    sizes: list[Any],
    group_name: Any,
    group_size: int,
    out_dtypes: Sequence[torch.dtype] | None = None,
) -> Launched:
    started = emit(C10D.all_gather_into_tensor_out.default, sent, group_size, group_name, out=whole)
    shapes = [gathered(emit, value, group_size) for value in ins]

    def unpack(later: bodies.Emit, waited: list[Value]) -> list[Value]:
        rows = later(ATEN.reshape.default, waited[0], [group_size, -1])
        parts = later(ATEN.split_with_sizes.default, rows, sizes, 1)
        taken = [later(operator.getitem, parts, i) for i in range(len(sizes))]
        if out_dtypes is not None:
            taken = [later(ATEN.view.dtype, part, dtype) for part, dtype in zip(taken, out_dtypes, strict=True)]
        return [later(ATEN.reshape.default, part, shape) for part, shape in zip(taken, shapes, strict=True)]

    return Launched((started,), unpack)


def _as_bytes(
    emit: Writer, ins: Sequence[Value], group_name: Any, group_size: int, out_dtypes: Sequence[torch.dtype]
) -> Launched:
    """Packed as bytes, which needs no alignment; inductor's way reads an element at an address that is none of its."""
    cells = [bodies.cast(emit, value, dtype) for value, dtype in zip(ins, out_dtypes, strict=True)]
    return packed_bodies.all_gather(emit, cells, dtypes=list(out_dtypes), group=group_name, ranks=group_size)


def _of_one_type(emit: Writer, ins: Sequence[Value], out_dtypes: Sequence[torch.dtype]) -> list[Value]:
    """Inputs that go side by side. The copy behind converts them, but where they differ that would round twice."""
    if len({emit.dtype(value) for value in ins}) == 1:
        return list(ins)
    return [bodies.cast(emit, value, dtype) for value, dtype in zip(ins, out_dtypes, strict=True)]


def _empty(emit: Writer, like: Value, numel: Any, dtype: torch.dtype) -> Value:
    return emit(ATEN.empty.memory_format, [numel], dtype=dtype, device=emit.device(like), pin_memory=False)


def _slot(emit: Writer, whole: Value, numel: Any, rank: int) -> Value:
    begin, end = product(emit, [numel, rank]), product(emit, [numel, rank + 1])
    return emit(ATEN.slice.Tensor, whole, 0, begin, end)


def _in_units(emit: Writer, numel: Any, dtype: torch.dtype, unit: torch.dtype) -> Any:
    """How many elements of another type take the same bytes. That one is never larger."""
    return product(emit, [numel, dtype.itemsize // unit.itemsize])


def _is_aligned(numels: Sequence[Any], unit: torch.dtype, dtypes: Sequence[torch.dtype]) -> bool:
    """Whether each member begins at a multiple of its element size on every rank."""
    if all(dtype.itemsize == unit.itemsize for dtype in dtypes):
        return True
    if not all(type(n) is int for n in numels):
        return False
    ends = list(accumulate(n * dtype.itemsize for n, dtype in zip(numels, dtypes, strict=True)))
    begins = [0, *ends[:-1]]
    return all(
        begin % dtype.itemsize == ends[-1] % dtype.itemsize == dtype.itemsize % unit.itemsize == 0
        for begin, dtype in zip(begins, dtypes, strict=True)
    )


def foreach_groups(emit: Writer, ins: Sequence[Value], out_dtypes: Sequence[torch.dtype]) -> list[int] | None:
    """Which members one foreach copy can take together: their numbers, groups divided by -1; None for one group."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    # From 2.15, tensors of several shapes are copied together as long as they are contiguous.
    one_shape = torch_version() < (2, 15)
    for index, (value, dtype) in enumerate(zip(ins, out_dtypes, strict=True)):
        # A guess is enough: the groups change the speed of the copy, not what it does.
        alike = tuple(_hint(size) for size in emit.shape(value)) if one_shape else _is_row_major(value)
        groups.setdefault((emit.dtype(value), dtype, alike), []).append(index)
    first, *others = groups.values()
    return [*first, *(index for group in others for index in (-1, *group))] if others else None


def _is_row_major(value: Value) -> bool:
    tensor: torch.Tensor = metadata.tensor_of(value) if isinstance(value, Node) else value
    unknown = isinstance(tensor, FakeTensor) and not is_constant_sized(tensor)
    return unknown or tensor.is_contiguous()


def _hint(size: Any) -> int | None:
    value = metadata.value_of(size) if isinstance(size, Node) else size
    return size_hint(value)


def torch_operator(name: str) -> torch._ops.OpOverload | None:
    """One of inductor's packing operators, where the installed torch has it with arguments that we know."""
    known = {"ag_ins", "rs_ins", "group_size", "group_name", "dtype", "out_dtype_ints", "rank", "foreach_group_indices"}
    # From 2.15, and nothing unless asked for: which members lack the padding behind them.
    known.add("unpadded_input_indices")
    packet = getattr(torch.ops.bucketing, name, None)
    overload: torch._ops.OpOverload | None = packet.default if packet is not None else None
    if overload is None or not known.issuperset(argument.name for argument in overload._schema.arguments):
        return None
    return overload


def run(body: Body, ins: Sequence[torch.Tensor], *rest: Any, **options: Any) -> list[torch.Tensor]:
    """The body on tensors, started and waited for."""
    emit = Eager()
    return body(emit, ins, *rest, **options).finish(emit)
