"""Put nodes back in an order in which every operand comes before its use, changing that order as little as possible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from torch.fx import Node

from counterpoint.ir.alias import Hazards
from counterpoint.ir.handover import required_order
from counterpoint.ir.legality import Changes
from counterpoint.ir.reason import Refusal


def settled(changes: Changes, hazards: Hazards) -> list[Node] | Refusal:
    """The smallest run of nodes that holds every operand standing after its use, in an order that is right.

    Among nodes that may come next, the one that stands first does. Empty when nothing is wrong.
    """
    required = required_order(changes, hazards)
    span = _wrong_span(changes, required)
    after: dict[Node, list[Node]] = {node: [] for node in span}
    missing = dict.fromkeys(span, 0)
    for node, sources in _edges(span, changes, hazards, required):
        for source in sources:
            if source in after:
                after[source].append(node)
                missing[node] += 1
    place = {node: index for index, node in enumerate(span)}
    ready = [place[node] for node in span if not missing[node]]
    heapify(ready)
    order: list[Node] = []
    while ready:
        order.append(span[heappop(ready)])
        for node in after[order[-1]]:
            missing[node] -= 1
            if not missing[node]:
                heappush(ready, place[node])
    if len(order) < len(span):
        stuck = next(node for node in span if missing[node])
        return Refusal("use-before-made", stuck.name, "it needs, through others, its own result")
    return order


def _edges(
    span: list[Node], changes: Changes, hazards: Hazards, required: Sequence[tuple[Node, Node]]
) -> Iterable[tuple[Node, Iterable[Node]]]:
    for node in span:
        yield node, node.all_input_nodes
    new = set(changes.made)
    # Conflicts count in the order of before. What the transaction made has no order to keep but its operands', and that
    # of erased nodes whose reads it took over.
    old = sorted((node for node in span if node not in new), key=changes.was)
    yield from hazards.order_edges(old).items()
    inside = set(span)
    yield from ((after, (before,)) for before, after in required if before in inside and after in inside)


def _wrong_span(changes: Changes, required: Sequence[tuple[Node, Node]]) -> list[Node]:
    """From the first node that stands before one that it needs to the last such one."""
    wrong = [node for before, after in required if not before < after for node in (before, after)]
    for node in dict.fromkeys((*changes.made, *changes.changed, *changes.moved)):
        late = [source for source in node.all_input_nodes if not source < node]
        early = [user for user in node.users if not node < user]
        wrong += [node, *late, *early] if late or early else []
    if not wrong:
        return []
    node, last = min(wrong), max(wrong)
    span = [node]
    while node is not last:
        node = node.next
        span.append(node)
    return span
