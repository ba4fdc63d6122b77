"""Build a distributed graph by hand, on fake tensors and without a process group: for tests, documentation, benchmarks.

builder = GraphBuilder(groups={"dp": range(4)})
grad = builder.input("grad", (1024, 1024))
half = builder.call(torch.ops.aten.div.Tensor, grad, 4)
graph = builder.finish(builder.all_reduce(half, "sum", "dp"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from counterpoint._torch import FakeTensorMode, OpOverload, new_symbol
from counterpoint.ir import ops
from counterpoint.ir.fake import run_fake, set_value
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.metadata import Size

_C10D = torch.ops._c10d_functional


class GraphBuilder:
    """Collects nodes; every node gets its fake value at once, so that a wrong shape fails where it is written."""

    def __init__(self, groups: Mapping[str, Sequence[int]] | None = None, device: str = "cpu") -> None:
        self.groups = GroupTable({name: tuple(ranks) for name, ranks in (groups or {"0": range(2)}).items()})
        self.shape_env = ShapeEnv()
        self.fake_mode = FakeTensorMode(shape_env=self.shape_env, allow_non_fake_inputs=True)
        self.device = device
        self.graph = Graph()

    def input(
        self,
        name: str,
        shape: Sequence[Size],
        dtype: torch.dtype = torch.float32,
        stride: Sequence[Size] | None = None,
    ) -> Node:
        """A placeholder."""
        with self.fake_mode:
            if stride is None:
                value = torch.empty(tuple(shape), dtype=dtype, device=self.device)
            else:
                value = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device=self.device)
        return set_value(self.graph.placeholder(name), value)

    def symbol(self, name: str, hint: int) -> torch.SymInt:
        """A symbolic size with a hint, to be used in shapes."""
        return new_symbol(self.shape_env, name, hint)

    def call(self, operator: OpOverload | Any, *args: Any, **kwargs: Any) -> Node:
        """A call, with its fake value computed from those of its arguments."""
        node = self.graph.call_function(operator, args, kwargs)
        return set_value(node, run_fake(node, self.fake_mode, self.groups))

    def wait(self, start: Node) -> Node:
        """The wait of a started collective."""
        return self.call(_C10D.wait_tensor.default, start)

    def all_reduce(self, tensor: Node, reduce_op: str = "sum", group: str = "0") -> Node:
        """An all-reduce and its wait; returns the wait."""
        return self.wait(self.call(_C10D.all_reduce.default, tensor, reduce_op, group))

    def all_gather(self, tensor: Node, group: str = "0") -> Node:
        """An all-gather along dim 0 and its wait; returns the wait."""
        return self.wait(self.call(_C10D.all_gather_into_tensor.default, tensor, len(self.groups[group]), group))

    def reduce_scatter(self, tensor: Node, reduce_op: str = "sum", group: str = "0") -> Node:
        """A reduce-scatter along dim 0 and its wait; returns the wait."""
        size = len(self.groups[group])
        return self.wait(self.call(_C10D.reduce_scatter_tensor.default, tensor, reduce_op, size, group))

    def finish(self, *outputs: Any) -> GraphModule:
        """Close the graph with these outputs and check its form."""
        self.graph.output(tuple(outputs))
        self.graph.lint()
        return GraphModule(torch.nn.Module(), self.graph)


def collectives_in(graph: Graph) -> list[Node]:
    """The starts of a graph in order, for tests."""
    return [node for node in graph.nodes if ops.is_collective(node)]
