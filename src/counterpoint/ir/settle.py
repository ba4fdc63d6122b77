"""Put nodes back in an order in which every operand comes before its use, changing that order as little as possible."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from torch.fx import Node

from counterpoint.ir.alias import Hazards
from counterpoint.ir.legality import Changes
from counterpoint.ir.reason import Refusal


def settled(changes: Changes, hazards: Hazards) -> list[Node] | Refusal:
    """The smallest run of nodes that holds every operand standing after its use, in an order that is right.

    Among nodes that may come next, the one that stands first does. Empty when nothing is wrong.
    """
    span = _wrong_span(changes)
    after: dict[Node, list[Node]] = {node: [] for node in span}
    missing = dict.fromkeys(span, 0)
    for node, sources in _edges(span, changes, hazards):
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


def _edges(span: list[Node], changes: Changes, hazards: Hazards) -> Iterable[tuple[Node, Iterable[Node]]]:
    for node in span:
        yield node, node.all_input_nodes
    new = set(changes.made)
    # Conflicts count in the order of before: what the transaction made has no order to keep but its operands'.
    old = sorted((node for node in span if node not in new), key=changes.was)
    yield from hazards.order_edges(old).items()


def _wrong_span(changes: Changes) -> list[Node]:
    """From the first user that stands before an operand to the last such operand."""
    wrong: list[Node] = []
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
