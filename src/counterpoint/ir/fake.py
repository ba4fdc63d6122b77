"""Compute one node's fake value from the fake values of its arguments, without interpreting the rest of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from counterpoint._torch import FakeTensor, FakeTensorMode, tensor_metadata
from counterpoint.errors import GraphError
from counterpoint.ir import metadata, ops
from counterpoint.ir.quick import quick_value


def fake_mode_of(graph: Graph) -> FakeTensorMode:
    """The fake mode that the graph's values belong to."""
    for node in graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, FakeTensor):
                return tensor.fake_mode
    raise GraphError(
        "the graph holds no fake tensor, so the values of new nodes cannot be computed",
        next_step="propagate fake tensors over the graph before handing it in",
    )


def set_value(node: Node, value: Any) -> Node:
    """Attach a value and the `tensor_meta` that some of torch's passes read instead."""
    node.meta["val"] = value
    if isinstance(value, torch.Tensor):
        node.meta["tensor_meta"] = tensor_metadata(value)
    elif isinstance(value, (list, tuple)) and value and all(isinstance(v, torch.Tensor) for v in value):
        node.meta["tensor_meta"] = type(value)(tensor_metadata(v) for v in value)
    return node


def run_fake(node: Node, mode: FakeTensorMode, group_sizes: Mapping[str, Any] | None = None) -> Any:
    """What the node computes, on fake values. Operators whose fake kernel needs a live group have rules here."""
    args = map_arg(node.args, metadata.value_of)
    kwargs = map_arg(node.kwargs, metadata.value_of) if node.kwargs else node.kwargs
    value = quick_value(node.target, args, kwargs, mode)
    if value is not NotImplemented:
        return value
    rule = _RULES.get(spec.name) if (spec := ops.spec_of(node.target)) else None
    if rule is not None:
        return rule(node, group_sizes or {})
    with mode:
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _written_output(node: Node, _: Mapping[str, Any]) -> torch.Tensor:
    return metadata.tensor_of(ops.argument(node, "out"))


def _shard_dim_alltoall(node: Node, groups: Mapping[str, Any]) -> torch.Tensor:
    tensor = metadata.tensor_of(ops.argument(node, "input"))
    size = len(groups[ops.argument(node, "group_name")])
    shape = list(tensor.shape)
    shape[ops.argument(node, "gather_dim")] *= size
    shape[ops.argument(node, "shard_dim")] //= size
    return tensor.new_empty(shape)


# The fake kernels of the out forms make a tensor of their own; the operators return the buffer they were given.
_RULES = {
    "_c10d_functional::all_gather_into_tensor_out": _written_output,
    "_c10d_functional::reduce_scatter_tensor_out": _written_output,
    "_dtensor::shard_dim_alltoall": _shard_dim_alltoall,
}
