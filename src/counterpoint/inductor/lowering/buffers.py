"""Communication buffers: memory that peers read and write directly, so that nothing is copied in and out.

Inductor allocates such a buffer where a tensor's layout is a `CommBufferLayout`, always at one place. That can be asked
for what inductor allocates itself with a size that it knows; everything else is refused in words, or copied once.
"""

from __future__ import annotations

from typing import Any

from torch._inductor import ir

from counterpoint.errors import CompileError


def refuse_comm_buffer(x: ir.TensorBox) -> str | None:
    """Why the tensor's memory cannot be a communication buffer; None where it can."""
    data = data_of(x)
    if data is None:
        return "it is no tensor in memory"
    if not _is_fixed(data):
        return f"its size {list(data.get_size())} is not known while compiling"
    if isinstance(data, ir.Loops):
        return None
    layout = data.get_output_spec()
    if isinstance(layout, ir.CommBufferLayout):
        return None
    if isinstance(data, ir.InputBuffer):
        return "it is an input of the graph, which the caller has allocated"
    if isinstance(layout, (ir.NonOwningLayout, ir.MutationLayoutSHOULDREMOVE)):
        return "it lies in another tensor's memory"
    if isinstance(data, ir.Buffer) and not data.should_allocate():
        return "the operator that makes it allocates it"
    if not isinstance(layout, (ir.FlexibleLayout, ir.FixedLayout)):
        return f"its layout is a {type(layout).__name__}"
    return None


def realize_comm_buffer(x: ir.TensorBox, kind: ir.CommBufferType, group_name: str) -> None:
    """Have the tensor's memory allocated as a communication buffer of the group; CompileError where that cannot be."""
    refusal = refuse_comm_buffer(x)
    if refusal is not None:
        raise CompileError(
            f"a tensor cannot be made a communication buffer: {refusal}",
            where=f"group {group_name}",
            next_step="copy it first, or communicate it with an operator that takes any memory",
        )
    x.realize()
    buffer: Any = data_of(x)
    layout = buffer.get_output_spec()
    if not isinstance(layout, ir.CommBufferLayout):
        buffer.layout = ir.CommBufferLayout(layout=layout, comm_buffer_type=kind, group_name=group_name)


def in_comm_buffer(x: ir.TensorBox, kind: ir.CommBufferType, group_name: str) -> ir.TensorBox:
    """The tensor in a communication buffer: itself where that can be, else a copy, else as it is.

    A tensor of unknown size stays where it is, and the operator says at run time whether it can take it.
    """
    if refuse_comm_buffer(x) is None:
        realize_comm_buffer(x, kind, group_name)
        return x
    if not _is_fixed(x):
        return x
    x.realize()
    copy = ir.Pointwise.create(
        device=x.get_device(), dtype=x.get_dtype(), inner_fn=x.make_loader(), ranges=x.get_size()
    )
    realize_comm_buffer(copy, kind, group_name)
    return copy


def data_of(x: ir.TensorBox) -> Any:
    """What computes or holds the tensor, views looked through; None where there is no such thing."""
    inner: Any = x.data
    if isinstance(inner, ir.BaseView):
        inner = inner.unwrap_view()
    return inner.data if isinstance(inner, ir.MutableBox) else None


def _is_fixed(x: Any) -> bool:
    # Inductor's `is_symbolic` knows tensors and SymInts, and says no to the expressions that sizes are here.
    return not getattr(x.get_numel(), "free_symbols", ())
