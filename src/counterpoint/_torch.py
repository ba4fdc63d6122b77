"""The only door, beside `inductor/`, to torch names that are not public. Each entry says which versions need what."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

# Loading these registers the operators and the fake kernels of functional collectives, which graphs refer to.
import torch.distributed._functional_collectives
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

OLDEST_TORCH = (2, 11)

__all__ = [
    "OLDEST_TORCH",
    "FakeTensor",
    "FakeTensorMode",
    "Formal",
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "formals",
    "has_registered_effect",
    "new_symbol",
    "register_operators",
    "tensor_metadata",
    "torch_version",
]


def torch_version() -> tuple[int, int]:
    """Major and minor version of the installed torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def register_operators() -> None:
    """Load the modules whose import registers communicating operators: DTensor's and those of symmetric memory.

    They are not loaded with this package because they take a second that most callers do not need.
    """
    import torch.distributed._symmetric_memory
    import torch.distributed.tensor  # noqa: F401


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


def tensor_metadata(value: torch.Tensor) -> Any:
    """The `tensor_meta` record of a tensor, as torch's own propagation writes it."""
    from torch.fx.passes.shape_prop import _extract_tensor_metadata

    return _extract_tensor_metadata(value)


def new_symbol(shape_env: Any, name: str, hint: int) -> torch.SymInt:
    """A fresh symbolic size of a shape environment, with a hint."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = ConstantSource(name)
    symbol = shape_env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
    created: torch.SymInt = shape_env.create_symintnode(symbol, hint=hint, source=source)
    return created
