"""Is it a graph at all: operands exist, belong to it and come first, there is no cycle, every value is known."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Graph, Node

from counterpoint.ir import metadata
from counterpoint.ir.verify.finding import Finding, at


def check_order(graph: Graph) -> Iterator[Finding]:
    """Operands before users. Everything else that is checked relies on this."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    late = False
    for node in place:
        for operand in node.all_input_nodes:
            if operand.graph is not graph:
                yield at("foreign-operand", node, f"operand {operand.name} belongs to another graph")
            elif operand not in place:
                yield at("erased-operand", node, f"operand {operand.name} has been erased")
            elif place[operand] >= place[node]:
                late = True
                yield at("used-before-made", node, f"operand {operand.name} comes later in the graph")
    cycle = _cycle(place) if late else []
    if cycle:
        yield at("cycle", cycle[0], " -> ".join(n.name for n in (*cycle, cycle[0])))


def _cycle(place: dict[Node, int]) -> list[Node]:
    """One cycle of data dependences, in the order of use; empty when there is none."""
    missing = {node: sum(operand in place for operand in node.all_input_nodes) for node in place}
    ready = [node for node, count in missing.items() if count == 0]
    while ready:
        done = ready.pop()
        del missing[done]
        for user in done.users:
            if user in missing:
                missing[user] -= 1
                if missing[user] == 0:
                    ready.append(user)
    if not missing:
        return []
    # What is left can only wait for something that is left too: going from operand to operand must run into a circle.
    path: dict[Node, None] = {}
    node = next(iter(missing))
    while node not in path:
        path[node] = None
        node = next(operand for operand in node.all_input_nodes if operand in missing)
    trail = list(path)
    return trail[trail.index(node) :][::-1]


def check_known(graph: Graph) -> Iterator[Finding]:
    """Every node that computes something says what."""
    for node in graph.nodes:
        if node.op in ("placeholder", "call_function") and not metadata.has_value(node):
            yield at("no-metadata", node, 'the node has no meta["val"]')
