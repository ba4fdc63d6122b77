"""Mixed precision at the border of a wrapped module: which tensors are cast, and when.

The policy is torch's own `MixedPrecisionPolicy`, so the same object serves before and after a change of import.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from counterpoint import _torch

FULL_PRECISION = MixedPrecisionPolicy()


def cast_floats(tree: Any, dtype: torch.dtype | None) -> Any:
    """Every floating-point tensor of a nest of containers in `dtype`; everything else, and `None`, as it is."""
    if dtype is None:
        return tree
    return _torch.tree_map(
        lambda leaf: leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf, tree
    )


def cast_inputs(policy: MixedPrecisionPolicy, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`(args, kwargs)` as the wrapped forward receives them."""
    return cast_floats((args, kwargs), policy.param_dtype if policy.cast_forward_inputs else None)


def parameter_dtype(policy: MixedPrecisionPolicy, parameter: torch.Tensor) -> torch.dtype:
    """The dtype that the forward sees. Only floating-point parameters are ever cast."""
    if policy.param_dtype is None or not parameter.is_floating_point():
        return parameter.dtype
    return policy.param_dtype


def gradient_dtype(policy: MixedPrecisionPolicy, parameter: torch.Tensor) -> torch.dtype:
    """The dtype that gradients are reduced in: `reduce_dtype`, else the dtype in which they were computed."""
    return policy.reduce_dtype or parameter_dtype(policy, parameter)
