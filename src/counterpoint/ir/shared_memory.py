"""Collectives in memory that the ranks of a host share, as operators of a graph: schemas and fake values.

They take the arguments of the functional collectives of the same meaning, and are complete when they return. What
runs on the CPU is registered by `counterpoint.runtime.shared_memory`, which also describes them; what runs where GPUs
reach each other's memory by `counterpoint.runtime.symmetric_collectives`, as far as torch has kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

REDUCED = "Tensor input, str reduce_op, str group_name"
_WRITTEN = "Tensor(a!) input, str reduce_op, str group_name"
GATHERED = "Tensor input, int group_size, str group_name"
SCATTERED = "Tensor input, str reduce_op, int group_size, str group_name"
_OUT = "*, Tensor(a!) out"


def like(input: Tensor, *_: Any) -> Tensor:
    """The fake result of an all-reduce."""
    return input.new_empty(input.shape)


def gathered(input: Tensor, group_size: int, group_name: str) -> Tensor:
    """The fake result of a gather."""
    rows = input.shape[0] if input.dim() else 1
    return input.new_empty((rows * group_size, *input.shape[1:]))


def scattered(input: Tensor, reduce_op: str, group_size: int, group_name: str) -> Tensor:
    """The fake result of a reduce-scatter."""
    return input.new_empty((input.shape[0] // group_size, *input.shape[1:]))


def _itself(input: Tensor, *_: Any) -> Tensor:
    return input


def _given(*_: Any, out: Tensor) -> Tensor:
    return out


def _forms(
    name: str, arguments: str, fake: Callable[..., Tensor], written: str | None = None
) -> dict[str, tuple[str, Callable[..., Tensor]]]:
    """The operator with its other forms."""
    forms = {name: (f"({arguments}) -> Tensor", fake), f"{name}_out": (f"({arguments}, {_OUT}) -> Tensor(a!)", _given)}
    if written is not None:
        forms[f"{name}_"] = (f"({written}) -> Tensor(a!)", _itself)
    return forms


_OPERATORS: Mapping[str, tuple[str, Callable[..., Tensor]]] = MappingProxyType(
    {
        **_forms("shm_all_reduce", REDUCED, like, _WRITTEN),
        **_forms("shm_one_shot_all_reduce", REDUCED, like, _WRITTEN),
        **_forms("shm_two_shot_all_reduce", REDUCED, like, _WRITTEN),
        **_forms("shm_multicast_all_reduce", REDUCED, like, _WRITTEN),
        **_forms("shm_all_gather", GATHERED, gathered),
        **_forms("shm_reduce_scatter", SCATTERED, scattered),
    }
)

NAMES: Mapping[str, str] = MappingProxyType({name: f"counterpoint::{name}" for name in _OPERATORS})
"""Qualified names of the operators."""

for _name, (_schema, _fake) in _OPERATORS.items():
    torch.library.define(NAMES[_name], _schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(NAMES[_name], _fake)

OPS = torch.ops.counterpoint
"""The operators: `OPS.shm_all_reduce.default` and so on."""


# -- for code generators: the forms that write, without a result, since inductor generates no call whose result lies in
# -- an argument's memory

VOID: Mapping[str, str] = MappingProxyType({name: f"{name}void" for name in NAMES.values() if name.endswith("_")})
"""By the name of an operator that works in place: the one that does so and returns nothing."""


def _void(name: str) -> Callable[..., None]:
    def run(input: Tensor, *arguments: Any) -> None:
        getattr(OPS, name)(input, *arguments)

    return run


def _nothing(input: Tensor, *arguments: Any) -> None:
    return None


for _name, _twin in VOID.items():
    torch.library.define(_twin, f"({_WRITTEN}) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(_twin, _nothing)
    torch.library.impl(_twin, "CompositeExplicitAutograd", _void(_name.split("::")[1]))
