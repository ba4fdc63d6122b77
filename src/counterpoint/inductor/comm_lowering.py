"""The names of `torch._inductor.comm_lowering` as in torch 2.13, thin over `counterpoint.inductor.lowering`.

    from counterpoint.inductor.comm_lowering import can_realize_as_comm_buffer

Signatures are inductor's. What differs: a tensor of unknown size is refused where inductor says yes and fails later; a
refusal is a CompileError that says why instead of an assertion; and which waits can be skipped is remembered on the
graph that is being lowered, not under its address, which another graph may get. The backend "counterpoint" needs
neither of the two `register` functions: it has its lowerings in force while it compiles, and only for its own graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch._inductor import ir, lowering
from torch._inductor.virtualized import V

from counterpoint._torch import OpOverload
from counterpoint.inductor.lowering.buffers import realize_comm_buffer, refuse_comm_buffer
from counterpoint.inductor.lowering.forms import should_skip
from counterpoint.inductor.lowering.state import state_of
from counterpoint.inductor.lowering.table import comm_lowerings, symm_mem_lowerings

__all__ = [
    "can_realize_as_comm_buffer",
    "mark_as_skip_wait",
    "realize_as_comm_buffer",
    "register_comm_lowerings",
    "register_symm_mem_lowerings",
    "should_skip_wait",
]


def can_realize_as_comm_buffer(x: ir.TensorBox, comm_buffer_type: ir.CommBufferType) -> bool:
    """Whether the tensor's memory can be allocated as a communication buffer."""
    return refuse_comm_buffer(x) is None


def realize_as_comm_buffer(x: ir.TensorBox, comm_buffer_type: ir.CommBufferType, group_name: str) -> None:
    """Have the tensor's memory allocated as a communication buffer; CompileError where that cannot be."""
    realize_comm_buffer(x, comm_buffer_type, group_name)


def mark_as_skip_wait(x: ir.IRNode) -> None:
    """Say that the collective was lowered to a blocking form, so that waiting for its result is no work."""
    state_of(V.graph).skipped.add(x.get_name())


def should_skip_wait(x: ir.IRNode) -> bool:
    """Whether waiting for the tensor is no work, in the graph that is being lowered."""
    return should_skip(x)


def register_comm_lowerings() -> None:
    """Give inductor our lowerings of the functional collectives, for every compile in this process from now on."""
    _register(comm_lowerings())


def register_symm_mem_lowerings() -> None:
    """Give inductor our lowerings of operators on symmetric memory, for every compile from now on."""
    _register(symm_mem_lowerings())


def _register(ours: Mapping[OpOverload, Callable[..., Any]]) -> None:
    for operator, lower in ours.items():
        if operator.namespace != "symm_mem":
            # The strides that the graph says, which are the same on all ranks.
            lowering.add_layout_constraint(operator, lowering.constrain_to_fx_strides)
        lowering.lowerings[operator] = lower
