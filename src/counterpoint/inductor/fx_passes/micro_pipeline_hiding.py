"""Which nodes could run while a collective does, by dependencies alone: inductor's rough rule, in linear passes.

Sets of nodes are bits of a number, so that a graph of ten thousand collectives takes seconds and not minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import fx
from torch.utils._ordered_set import OrderedSet

_C10D = torch.ops._c10d_functional
COLLECTIVES = (_C10D.all_gather_into_tensor.default, _C10D.reduce_scatter_tensor.default)


def find_ancestors(node: fx.Node) -> OrderedSet[fx.Node]:
    """The node and what it is computed from, without the inputs of the graph."""
    seen, frontier = {node: None}, [node]
    while frontier:
        for source in frontier.pop().all_input_nodes:
            if source not in seen:
                seen[source] = None
                frontier.append(source)
    return OrderedSet(found for found in seen if found.op != "placeholder")


def node_to_ancestors(graph: fx.Graph) -> dict[fx.Node, OrderedSet[fx.Node]]:
    """What each node is computed from. As large as it sounds; nothing here uses it."""
    found: dict[fx.Node, OrderedSet[fx.Node]] = {}
    for node in graph.nodes:
        own = OrderedSet(node.all_input_nodes)
        for source in node.all_input_nodes:
            own |= found[source]
        found[node] = own
    return found


def independent_of_collectives(
    graph: fx.Graph, counted: Callable[[fx.Node], bool]
) -> tuple[list[fx.Node], dict[fx.Node, int]]:
    """The nodes that are counted, and for each gather and reduce-scatter which of them it neither needs nor feeds."""
    nodes = [node for node in graph.nodes if counted(node)]
    bits = {node: 1 << place for place, node in enumerate(nodes)}
    starts = [node for node in graph.nodes if node.op == "call_function" and node.target in COLLECTIVES]
    needed = _reached(graph.nodes, lambda node: node.all_input_nodes, bits)
    fed = _reached(reversed(graph.nodes), lambda node: list(node.users), bits)
    every = (1 << len(nodes)) - 1
    return nodes, {start: every & ~(needed[start] | fed[start]) for start in starts}


def _reached(
    order: Iterable[fx.Node], neighbours: Callable[[fx.Node], list[fx.Node]], bits: dict[fx.Node, int]
) -> dict[fx.Node, int]:
    found: dict[fx.Node, int] = {}
    for node in order:
        own = 0
        for other in neighbours(node):
            own |= found[other] | bits.get(other, 0)
        found[node] = own
    return found


def members(nodes: list[fx.Node], bits: int) -> Iterator[fx.Node]:
    """The nodes of a set, in order."""
    while bits:
        lowest = bits & -bits
        yield nodes[lowest.bit_length() - 1]
        bits ^= lowest


def collective_to_overlappable_nodes(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each gather and reduce-scatter the calls that are neither needed by it nor need it."""
    nodes, independent = independent_of_collectives(graph, lambda node: node.op == "call_function")
    return {start: list(members(nodes, bits)) for start, bits in independent.items() if bits}


def unexposed_collectives(graph: fx.Graph) -> list[fx.Node]:
    """The collectives that a matmul beside them hides; every matmul hides one, the first that can have it."""
    nodes, independent = independent_of_collectives(graph, lambda node: node.target is torch.ops.aten.mm.default)
    free, hidden = (1 << len(nodes)) - 1, []
    for start, bits in independent.items():
        usable = bits & free
        if usable:
            free ^= usable & -usable
            hidden.append(start)
    return hidden
