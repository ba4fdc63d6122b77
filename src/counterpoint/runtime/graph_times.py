"""Measuring the compute of a graph as a whole: its operators in their order, its collectives free, on made-up values.

What a collective would have brought is allocated and not filled. The rest runs as in a step: behind each other, through
the same caches, in the kernels of the code generator.
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
from counterpoint.runtime.operator_times import made_up, size_of

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
    """The graph with its collectives done by nobody, and values for its inputs and for what it held."""
    alone = copy_graph(gm)
    values = [made_up(_value(node), device) for node in alone.graph.nodes if node.op == "placeholder"]
    values += _held_as_inputs(alone, device)
    sent: list[Node] = []
    for node in list(alone.graph.nodes):
        if ops.is_wait(node):
            node.replace_all_uses_with(node.all_input_nodes[0])
            alone.graph.erase_node(node)
        elif ops.is_collective(node):
            sent += node.all_input_nodes
            _skip(node, device)
    for start in [node for node in alone.graph.nodes if ops.is_collective(node)]:
        alone.graph.erase_node(start)
    # What is only sent must still be made.
    output = alone.graph.output_node()
    output.args = ((output.args[0], sent),)
    alone.recompile()
    return alone, values


def _value(node: Node) -> Any:
    if not metadata.has_value(node):
        raise CaptureError(
            "nobody knows the shape of it", where=f"node {node.name}", next_step="capture the graph anew"
        )
    return node.meta["val"]


def _skip(start: Node, device: torch.device | None) -> None:
    """Put something in place of a collective's result."""
    spec = ops.spec_of(start.target)
    if spec is not None and spec.form is Form.IN_PLACE and not spec.coalesced:
        start.replace_all_uses_with(ops.tensors(start, spec.payload)[0])
        return
    value = _value(start)
    if isinstance(value, Tensor):
        with start.graph.inserting_before(start):
            start.replace_all_uses_with(_room(start, value, device))
        return
    for user in list(start.users):
        if user.target is not operator.getitem:
            raise CaptureError(
                "it takes all results at once", where=f"node {user.name}", next_step="measure without it"
            )
        with start.graph.inserting_before(start):
            user.replace_all_uses_with(_room(start, value[user.args[1]], device))
        start.graph.erase_node(user)


def _room(start: Node, value: Tensor, device: torch.device | None) -> Node:
    sizes, strides = ([size_of(one) for one in many] for many in (value.shape, value.stride()))
    where: dict[str, Any] = {"dtype": value.dtype, "device": device or value.device}
    made = start.graph.call_function(torch.ops.aten.empty_strided.default, (sizes, strides), where)
    made.meta["val"] = value
    return made


def _held_as_inputs(alone: GraphModule, device: torch.device | None) -> list[Any]:
    """Turn what the graph holds, of which only the shape may be known, into inputs; their values."""
    values = []
    first = next(node for node in alone.graph.nodes if node.op != "placeholder")
    for node in [node for node in alone.graph.nodes if node.op == "get_attr" and metadata.has_value(node)]:
        with alone.graph.inserting_before(first):
            given = alone.graph.placeholder(f"held_{node.name}")
        values.append(made_up(node.meta["val"], device))
        node.replace_all_uses_with(given)
        first = given.next if first is node else first
        alone.graph.erase_node(node)
    return values
