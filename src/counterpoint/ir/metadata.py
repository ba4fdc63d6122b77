"""Reading `meta["val"]`: shapes, dtypes and bytes of what a node computes, symbolic sizes kept symbolic."""

from __future__ import annotations

from typing import Any

import torch
from torch import SymInt
from torch.fx import Node

from counterpoint.errors import GraphError

Size = int | SymInt


def has_value(node: Node) -> bool:
    """Whether the node carries metadata at all."""
    return "val" in node.meta


def value_of(node: Node) -> Any:
    """The node's fake value: a tensor, a list of tensors, a symbolic number, None."""
    try:
        return node.meta["val"]
    except KeyError:
        raise GraphError(
            'the node has no meta["val"], so its shape and dtype are unknown',
            where=f"node {node.name}",
            next_step="propagate fake tensors over the graph, or capture it with counterpoint.capture",
        ) from None


def tensor_of(node: Node) -> torch.Tensor:
    """The node's fake tensor; GraphError when it computes something else."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        raise GraphError(f"expected a tensor, but the node computes {type(value).__name__}", where=f"node {node.name}")
    return value


def tensors_of(node: Node) -> tuple[torch.Tensor, ...]:
    """All fake tensors that the node computes, in order."""
    value = value_of(node)
    found = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(v for v in found if isinstance(v, torch.Tensor))


def nbytes_of(tensor: torch.Tensor) -> Size:
    """Bytes of a tensor's elements; symbolic when its shape is."""
    return tensor.numel() * tensor.element_size()
