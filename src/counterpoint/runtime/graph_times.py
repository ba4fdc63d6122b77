"""Measuring the compute of a graph as a whole: its operators in their order, its collectives free, on made-up values.

What a collective would have brought is there from the beginning, filled as inputs are: a GPU multiplies zeros a seventh
faster than other numbers (our measurement, H200: 101 against 116 ms a step). The rest runs as in a step: behind each
other, through the same caches, in the kernels of the code generator.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from counterpoint._torch import copy_graph
from counterpoint.errors import CaptureError
from counterpoint.ir import metadata, ops
from counterpoint.ir.ops import Form
from counterpoint.runtime.measure import synchronize
from counterpoint.runtime.operator_times import made_up

REPEATS = 7
WARM_UPS = 3


def measure_compute(
    gm: GraphModule, device: torch.device | None = None, *, repeats: int = REPEATS, codegen: str = "inductor"
) -> float:
    """Microseconds of a graph's compute. codegen: `inductor`, or `eager` to run operator by operator. `device`: where,
    by default where the graph was captured."""
    alone, values = without_communication(gm, device)
    run: Callable[..., Any] = alone
    if codegen == "inductor":
        run = torch.compile(alone, backend="inductor", dynamic=False)
    where = next((value.device for value in values if isinstance(value, Tensor)), torch.device("cpu"))
    with torch.no_grad():
        return median([_run_us(run, values, where) for _ in range(WARM_UPS + repeats)][WARM_UPS:])


def _run_us(run: Callable[..., Any], values: list[Any], device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    run(*values)
    synchronize(device)
    return (time.perf_counter() - began) * 1e6


def without_communication(gm: GraphModule, device: torch.device | None = None) -> tuple[GraphModule, list[Any]]:
    """The graph with its collectives done by nobody; values for its inputs, for what it held and what they brought."""
    alone = copy_graph(gm)
    given = _Given(alone)
    sent: list[Node] = []
    for node in list(alone.graph.nodes):
        if node.op == "get_attr" and metadata.has_value(node):
            # Of what a graph holds only the shape may be known.
            given.in_place_of(node, node.meta["val"])
        elif ops.is_wait(node):
            node.replace_all_uses_with(node.all_input_nodes[0])
            alone.graph.erase_node(node)
        elif ops.is_collective(node):
            sent += node.all_input_nodes
            _skip(node, given)
    for start in [node for node in alone.graph.nodes if ops.is_collective(node)]:
        alone.graph.erase_node(start)
    # What is only sent must still be made.
    output = alone.graph.output_node()
    output.args = ((output.args[0], sent),)
    alone.recompile()
    return alone, [made_up(_value(node), device) for node in alone.graph.nodes if node.op == "placeholder"]


class _Given:
    """Makes inputs, behind those that there are."""

    def __init__(self, alone: GraphModule) -> None:
        self.graph = alone.graph
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        self.last: Node | None = inputs[-1] if inputs else None

    def in_place_of(self, node: Node, value: Tensor) -> None:
        """An input instead of this node, which is erased if nobody needs it then."""
        first = next(iter(self.graph.nodes))
        place = self.graph.inserting_before(first) if self.last is None else self.graph.inserting_after(self.last)
        with place:
            self.last = self.graph.placeholder(f"given_{node.name}")
        self.last.meta["val"] = value
        node.replace_all_uses_with(self.last)
        if not ops.is_collective(node):
            self.graph.erase_node(node)


def _value(node: Node) -> Any:
    if not metadata.has_value(node):
        raise CaptureError(
            "nobody knows the shape of it", where=f"node {node.name}", next_step="capture the graph anew"
        )
    return node.meta["val"]


def _skip(start: Node, given: _Given) -> None:
    """Put something in place of a collective's result."""
    spec = ops.spec_of(start.target)
    if spec is not None and spec.form is Form.IN_PLACE and not spec.coalesced:
        start.replace_all_uses_with(ops.tensors(start, spec.payload)[0])
        return
    value = _value(start)
    if isinstance(value, Tensor):
        given.in_place_of(start, value)
        return
    for user in list(start.users):
        if user.target is not operator.getitem:
            raise CaptureError(
                "it takes all results at once", where=f"node {user.name}", next_step="measure without it"
            )
        given.in_place_of(user, value[user.args[1]])
