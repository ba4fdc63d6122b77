"""Operators on symmetric memory: what they send, and for some also what they fill, must lie in communication buffers.

They are complete in stream order, so nothing has to be waited for, except the low-contention forms, which run beside
the compute stream and therefore count as starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch._inductor import ir
from torch._inductor.lowering import copy_
from torch.utils._pytree import tree_map

from counterpoint.inductor.lowering.buffers import in_comm_buffer
from counterpoint.inductor.lowering.forms import Call, contiguous, lower_functional
from counterpoint.ir.ops import Form

IN_BUFFERS: Mapping[str, tuple[str, ...]] = {
    "symm_mem::one_shot_all_reduce": ("input",),
    "symm_mem::one_shot_all_reduce_out": ("input",),
    "symm_mem::one_shot_all_reduce_copy": ("symm_buffer",),
    "symm_mem::one_shot_all_reduce_copy_out": ("symm_buffer",),
    "symm_mem::two_shot_all_reduce_": ("input",),
    "symm_mem::two_shot_all_reduce_out": ("input",),
    "symm_mem::multimem_all_reduce_": ("input",),
    "symm_mem::multimem_one_shot_all_reduce": ("input",),
    "symm_mem::multimem_one_shot_all_reduce_out": ("input",),
    "symm_mem::multimem_one_shot_reduce_out": ("input",),
    "symm_mem::multimem_all_gather_out": ("input",),
    "symm_mem::reduce_scatter_out": ("input",),
    "symm_mem::all_to_all_vdev": ("input", "out"),
    "symm_mem::all_to_all_vdev_2d": ("input", "out"),
    "symm_mem::all_to_all_vdev_2d_offset": ("input", "out"),
    "symm_mem::tile_reduce": ("in_tile", "out_tile"),
    "symm_mem::multi_root_tile_reduce": ("in_tiles", "out_tile"),
    "symm_mem::_low_contention_all_gather": (),
    "symm_mem::_low_contention_reduce_scatter": (),
}
"""Which arguments of an operator must lie in communication buffers. The low-contention forms take any memory."""


def lower_symmetric(call: Call) -> Any:
    """An operator on symmetric memory."""
    if call.spec.waits:
        return lower_functional(call)
    group = call.values["group_name"]
    placed = {name: _place(call.values[name], group) for name in IN_BUFFERS[call.spec.name]}
    args, kwargs = call.arguments(**placed)
    made: Any = ir.FallbackKernel.create(call.overload, *args, **kwargs)
    for name, value in placed.items():
        if name in call.spec.written and value is not call.values[name]:
            # A copy was worked on: its owner gets the values.
            copy_(call.values[name], value)
    if call.spec.form is Form.IN_PLACE:
        return call.values[call.spec.payload[0]]
    return tree_map(ir.TensorBox.create, made) if made is not None else None


def _place(value: Any, group: str) -> Any:
    if isinstance(value, (list, tuple)):
        return [_place(one, group) for one in value]
    return in_comm_buffer(contiguous(value), ir.CommBufferType.SYMM_MEM, group)
