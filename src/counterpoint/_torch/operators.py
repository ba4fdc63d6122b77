"""Operators: their schemas, names, effects, and how to find them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import torch

# Loading these registers the operators and the fake kernels of functional collectives, which graphs refer to.
import torch.distributed._functional_collectives
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

T = TypeVar("T")


def register_operators() -> None:
    """Load the modules whose import registers communicating operators: DTensor's and those of symmetric memory.

    They are not loaded with this package because they take a second that most callers do not need.
    """
    import torch.distributed._symmetric_memory
    import torch.distributed.tensor  # noqa: F401


def once_an_operator(answer: Callable[[OpOverload], T]) -> Callable[[OpOverload], T]:
    """Remember what a function says of each operator. As `functools.cache`, but by identity: operators are hashed in
    Python, and a large graph asks such questions a hundred times for every collective."""
    known: dict[int, tuple[OpOverload, T]] = {}

    @wraps(answer)
    def remembered(overload: OpOverload) -> T:
        try:
            return known[id(overload)][1]
        except KeyError:
            # The operator is kept, so that no other one can ever have its identity.
            known[id(overload)] = overload, answer(overload)
            return known[id(overload)][1]

    return remembered


class Formal(NamedTuple):
    """One formal argument of an operator's schema."""

    name: str
    kwarg_only: bool
    has_default: bool
    default: Any
    aliases: bool
    """The result may share this argument's storage."""
    written: bool
    """The operator writes into this argument."""


def formals(overload: OpOverload) -> tuple[Formal, ...]:
    """The formal arguments of an operator, in order."""
    return tuple(
        Formal(
            name=a.name,
            kwarg_only=a.kwarg_only,
            has_default=a.has_default_value(),
            default=a.default_value,
            aliases=a.alias_info is not None,
            written=a.alias_info is not None and a.alias_info.is_write,
        )
        for a in overload._schema.arguments
    )


def has_registered_effect(target: Any) -> bool:
    """Whether torch has been told that a call has effects beyond its result."""
    if target in torch.fx.node._side_effectful_functions:
        return True
    if not isinstance(target, OpOverload):
        return False
    from torch._higher_order_ops import effects

    # 2.11 and 2.12 keep the lookup under another name on some builds; an absent lookup means no registry.
    lookup = getattr(effects, "_get_effect", None) or getattr(effects, "get_effect_key", None)
    if lookup is None:
        return False
    try:
        return lookup(target) is not None
    except TypeError:
        # get_effect_key also wants the arguments, which only matter for scripted objects.
        return lookup(target, (), {}) is not None


def operator_name(target: OpOverload) -> tuple[str, str, str]:
    """Namespace, name and overload of an operator."""
    namespace, _, name = target._schema.name.partition("::")
    return namespace, name, target._overloadname


# Operators that only exist after their module was loaded. A fixed list: what a graph text says never decides an import.
_OPERATOR_MODULES = {
    "symm_mem": "torch.distributed._symmetric_memory",
    "_dtensor": "torch.distributed.tensor",
    "bucketing": "torch._inductor.fx_passes.bucketing",
    "inductor": "torch._inductor.inductor_prims",
    "prims": "torch._inductor.inductor_prims",
    "rngprims": "torch._prims.rng_prims",
    "higher_order": "torch._higher_order_ops",
}


def _packet(namespace: str, name: str) -> OpOverloadPacket | None:
    for loaded in (False, True):
        if loaded:
            if namespace not in _OPERATOR_MODULES:
                return None
            importlib.import_module(_OPERATOR_MODULES[namespace])
        packet = getattr(getattr(torch.ops, namespace, None), name, None)
        if isinstance(packet, OpOverloadPacket):
            return packet
    return None


def find_operator(namespace: str, name: str, overload: str) -> OpOverload | None:
    """An operator from torch's registry, or None. Magic names and methods of the registry itself are never returned."""
    if any(part.startswith("__") for part in (namespace, overload)) or not namespace or not name:
        return None
    packet = _packet(namespace, name)
    found = getattr(packet, overload, None) if packet is not None and overload in packet.overloads() else None
    return found if isinstance(found, OpOverload) else None


def find_higher_order(name: str) -> HigherOrderOperator | None:
    """A higher-order operator from torch's registry, or None."""
    import torch._higher_order_ops

    if name == "control_deps" and name not in torch._ops._higher_order_ops:
        importlib.import_module("torch._inductor.fx_passes.control_dependencies")
    found = torch._ops._higher_order_ops.get(name)
    return found if isinstance(found, HigherOrderOperator) else None


def overload_names(namespace: str, name: str) -> tuple[str, ...]:
    """The overloads of an operator; empty when there is no such operator."""
    if not namespace or not name or namespace.startswith("__"):
        return ()
    packet = _packet(namespace, name)
    return () if packet is None else tuple(packet.overloads())


def all_operator_names() -> list[str]:
    """`namespace.name` of every registered operator (for the near names in error messages)."""
    names = {name.partition(".")[0].replace("::", ".") for name in torch._C._dispatch_get_all_op_names()}
    return sorted(names | {f"higher_order.{name}" for name in torch._ops._higher_order_ops})
