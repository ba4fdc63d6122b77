"""Which lowering an operator gets: a table made from the rows of `ir/ops.py`, for the operators that this torch has."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch._inductor.virtualized import V

from counterpoint._torch import OpOverload
from counterpoint.errors import GraphError
from counterpoint.inductor.lowering import forms
from counterpoint.inductor.lowering.forms import LOWER, Call, Lower
from counterpoint.inductor.lowering.state import keep_order
from counterpoint.inductor.lowering.symmetric import IN_BUFFERS, lower_symmetric
from counterpoint.ir import ops
from counterpoint.ir.ops import Kind, OpSpec
from counterpoint.ir.shared_memory import VOID

Registered = Callable[..., Any]

BY_KIND: Mapping[Kind, Lower] = {
    Kind.WAIT: forms.lower_wait,
    Kind.RECV: forms.lower_in_place,
    Kind.P2P_BATCH: forms.lower_p2p_batch,
}
"""Kinds whose lowering does not follow from the form alone."""

BESIDE = frozenset({"_dtensor::shard_dim_alltoall"})
"""Operators outside `_c10d_functional` that the communication library runs."""


def lowering_of(spec: OpSpec) -> Lower | None:
    """What lowers the operator; None where inductor's way with any operator is right."""
    if spec.name in IN_BUFFERS:
        return lower_symmetric
    if spec.name.startswith("_c10d_functional::") or spec.name in BESIDE:
        return BY_KIND.get(spec.kind) or LOWER[spec.form]
    if spec.name in VOID:
        return forms.lower_without_result
    # Those that other libraries bring are left to inductor.
    return forms.lower_as_called if spec.name.startswith(("counterpoint::", "symm_mem::")) else None


def comm_lowerings() -> dict[OpOverload, Registered]:
    """Lowerings of the functional collectives, ready to be registered."""
    return {op: lower for op, lower in _all().items() if op.namespace != "symm_mem"}


def symm_mem_lowerings() -> dict[OpOverload, Registered]:
    """Lowerings of operators on symmetric memory."""
    return {op: lower for op, lower in _all().items() if op.namespace == "symm_mem"}


@functools.cache
def _all() -> Mapping[OpOverload, Registered]:
    found: dict[OpOverload, Registered] = {}
    for spec in ops.TABLE.values():
        lower = lowering_of(spec)
        overload = _overload(spec) if lower is not None else None
        if lower is not None and overload is not None:
            found[overload] = _registered(spec, overload, lower)
    return found


def _overload(spec: OpSpec) -> OpOverload | None:
    try:
        return ops.overload_of(spec)
    except GraphError:
        return None


def _registered(spec: OpSpec, overload: OpOverload, lower: Lower) -> Registered:
    def lowered(*args: Any, **kwargs: Any) -> Any:
        before = len(V.graph.operations)
        result = lower(Call.of(spec, overload, args, kwargs))
        if spec.kind is not Kind.WAIT:
            keep_order(V.graph, V.graph.operations[before:])
        return result

    return lowered
