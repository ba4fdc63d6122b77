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

_REDUCED = "Tensor input, str reduce_op, str group_name"
_WRITTEN = "Tensor(a!) input, str reduce_op, str group_name"
_GATHERED = "Tensor input, int group_size, str group_name"
_SCATTERED = "Tensor input, str reduce_op, int group_size, str group_name"
_OUT = "*, Tensor(a!) out"


def _like(input: Tensor, *_: Any) -> Tensor:
    return input.new_empty(input.shape)


def _gathered(input: Tensor, group_size: int, group_name: str) -> Tensor:
    rows = input.shape[0] if input.dim() else 1
    return input.new_empty((rows * group_size, *input.shape[1:]))


def _scattered(input: Tensor, reduce_op: str, group_size: int, group_name: str) -> Tensor:
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
        **_forms("shm_all_reduce", _REDUCED, _like, _WRITTEN),
        **_forms("shm_one_shot_all_reduce", _REDUCED, _like, _WRITTEN),
        **_forms("shm_two_shot_all_reduce", _REDUCED, _like, _WRITTEN),
        **_forms("shm_multicast_all_reduce", _REDUCED, _like, _WRITTEN),
        **_forms("shm_all_gather", _GATHERED, _gathered),
        **_forms("shm_reduce_scatter", _SCATTERED, _scattered),
    }
)

NAMES: Mapping[str, str] = MappingProxyType({name: f"counterpoint::{name}" for name in _OPERATORS})
"""Qualified names of the operators."""

for _name, (_schema, _fake) in _OPERATORS.items():
    torch.library.define(NAMES[_name], _schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(NAMES[_name], _fake)

OPS = torch.ops.counterpoint
"""The operators: `OPS.shm_all_reduce.default` and so on."""
