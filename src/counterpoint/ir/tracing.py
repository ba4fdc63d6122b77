"""Turn a plain function on tensors into calls: the way to write the body of a rewrite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from counterpoint._torch import FakeTensorMode
from counterpoint.errors import EditError
from counterpoint.ir import metadata


def trace_body(function: Callable[..., Any], inputs: Sequence[Node], mode: FakeTensorMode) -> GraphModule:
    """The calls that `function` makes on the values of these nodes, with the value of each."""
    with mode:
        gm = make_fx(function)(*(_fresh(metadata.value_of(node)) for node in inputs))
    gm.graph.eliminate_dead_code()
    for node in gm.graph.nodes:
        if node.op not in ("placeholder", "call_function", "output"):
            raise EditError(
                f"the body holds a {node.op}, {node.target}, which cannot be placed in another graph",
                where=f"function {getattr(function, '__name__', function)}",
                next_step="hand in every tensor as an input, and call operators only",
            )
    return gm


def _fresh(value: Any) -> Any:
    """Tracing tells tensors apart by identity, and two nodes may hold one fake tensor."""
    return value.detach() if isinstance(value, torch.Tensor) else value
