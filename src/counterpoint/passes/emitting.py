"""Writing the bodies of `counterpoint.passes.bodies` into a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from counterpoint._torch import FakeTensor, is_constant_sized
from counterpoint.ir import metadata, ops
from counterpoint.ir.edit import Transaction
from counterpoint.passes.book import carrying

_SIZE = torch.ops.aten.sym_size.int


@dataclass(frozen=True)
class GraphEmit:
    """Adds each operator as a call before `anchor`, in the name of the nodes that the calls replace."""

    tx: Transaction
    anchor: Node
    replaced: Sequence[Node]
    """The starts whose work the new nodes do; the first one's place in the user's code is theirs."""

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        spec = ops.spec_of(target)
        starts = spec is not None and spec.kind is not ops.Kind.WAIT
        meta = carrying(*self.replaced) if starts else None
        return self.tx.call(target, args, kwargs, before=self.anchor, like=self.replaced[0], meta=meta)

    def shape(self, value: Node) -> tuple[Any, ...]:
        """Sizes as numbers, and symbolic ones as nodes that read them."""
        sizes = metadata.tensor_of(value).shape
        return tuple(size if isinstance(size, int) else self(_SIZE, value, dim) for dim, size in enumerate(sizes))

    def contiguous(self, value: Node) -> Node:
        """The value in row-major order: itself, or a copy. Symbolic strides are taken as they are."""
        tensor = metadata.tensor_of(value)
        known = isinstance(tensor, FakeTensor) and is_constant_sized(tensor)
        if not known or tensor.is_contiguous():
            return value
        return self(torch.ops.aten.clone.default, value, memory_format=torch.contiguous_format)

    def dtype(self, value: Node) -> torch.dtype:
        """The element type of the node's value."""
        return metadata.tensor_of(value).dtype
