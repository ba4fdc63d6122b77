"""Collectives that work inside the hosts first, then across them, then inside again: schemas and fake values.

They take the arguments of the functional collectives of the same meaning, are named by the whole group, and find their
parts of it when they run: so no rank stands in a graph. Complete when they return. What runs is registered by
`counterpoint.runtime.hierarchical`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from counterpoint.ir import shared_memory as shared

_SCHEMAS: Mapping[str, tuple[str, Callable[..., Any]]] = MappingProxyType(
    {
        "hierarchical_all_reduce": (f"({shared.REDUCED}) -> Tensor", shared.like),
        "hierarchical_all_gather": (f"({shared.GATHERED}) -> Tensor", shared.gathered),
        "hierarchical_reduce_scatter": (f"({shared.SCATTERED}) -> Tensor", shared.scattered),
    }
)

NAMES: Mapping[str, str] = MappingProxyType({name: f"counterpoint::{name}" for name in _SCHEMAS})
"""Qualified names of the operators."""


def _define(name: str, schema: str, fake: Callable[..., Tensor]) -> None:
    torch.library.define(NAMES[name], schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(NAMES[name], fake)


for _name, (_schema, _fake) in _SCHEMAS.items():
    _define(_name, _schema, _fake)
