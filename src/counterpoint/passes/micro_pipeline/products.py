"""Matmuls as data: which operands they have, whatever they are called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from counterpoint.ir import metadata, ops
from counterpoint.ir.reason import Refusal

ATEN = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class Scales:
    """What a scaled matmul has beside its operands."""

    left: Node
    right: Node
    result: Node | None
    fast_accum: bool


@dataclass(frozen=True, kw_only=True)
class Product:
    """One matmul: `left @ right + bias`."""

    node: Node
    left: Node
    right: Node
    bias: Node | None = None
    right_turned: bool = False
    """The right operand is given the other way around, as a layer's weight."""
    left_turned: bool = False
    scales: Scales | None = None
    out_dtype: torch.dtype | None = None
    """The element type of the product, where it is not that of the operands."""

    @property
    def batched(self) -> bool:
        """Whether both operands have a dimension of matrices."""
        return self.node.target is ATEN.bmm.default

    def turned(self) -> Product | None:
        """The same numbers with rows for columns, `right^T @ left^T`; None where there is more to it."""
        plain = self.bias is None and self.scales is None
        if not plain or any(metadata.tensor_of(operand).dim() != 2 for operand in (self.left, self.right)):
            return None
        return replace(
            self,
            left=self.right,
            left_turned=not self.right_turned,
            right=self.left,
            right_turned=not self.left_turned,
        )


@dataclass(frozen=True)
class _Row:
    left: str
    right: str
    bias: str | None = None
    right_turned: bool = False
    ones: tuple[str, ...] = ()
    """Factors that must be one."""


_TABLE: dict[Any, _Row] = {
    ATEN.mm.default: _Row("self", "mat2"),
    ATEN.bmm.default: _Row("self", "mat2"),
    ATEN.addmm.default: _Row("mat1", "mat2", "self", ones=("alpha", "beta")),
    ATEN.linear.default: _Row("input", "weight", "bias", right_turned=True),
    ATEN._scaled_mm.default: _Row("self", "mat2", "bias"),
}
if hasattr(ATEN.mm, "dtype"):
    _TABLE[ATEN.mm.dtype] = _Row("self", "mat2")


def is_matmul(node: Node) -> bool:
    """Whether the node is one of the matmuls known here."""
    return node.op == "call_function" and node.target in _TABLE


def read_product(node: Node) -> Product | Refusal:
    """The matmul that a node computes, or what about it cannot be done in parts."""
    row = _TABLE[node.target]
    bias = ops.argument(node, row.bias) if row.bias else None
    factors = {name: ops.argument(node, name) for name in row.ones}
    if any(factor != 1 for factor in factors.values()):
        return Refusal("matmul-form", node.name, ", ".join(f"{name} = {value}" for name, value in factors.items()))
    if bias is not None and metadata.tensor_of(bias).dim() > 1:
        return Refusal("matmul-form", node.name, f"its bias has shape {list(metadata.tensor_of(bias).shape)}")
    left, right = ops.argument(node, row.left), ops.argument(node, row.right)
    scaled = node.target is ATEN._scaled_mm.default
    same = metadata.tensor_of(node).dtype is metadata.tensor_of(left).dtype
    return Product(
        node=node,
        left=left,
        right=right,
        bias=bias,
        right_turned=row.right_turned,
        scales=_scales(node) if scaled else None,
        out_dtype=None if same else metadata.tensor_of(node).dtype,
    )


def _scales(node: Node) -> Scales:
    return Scales(
        left=ops.argument(node, "scale_a"),
        right=ops.argument(node, "scale_b"),
        result=ops.argument(node, "scale_result"),
        fast_accum=ops.argument(node, "use_fast_accum"),
    )
