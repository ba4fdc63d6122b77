"""How much memory is alive at each node of a graph: a buffer lives from its maker to the last use of any view of it."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch.fx import Node

from counterpoint._torch import size_hint
from counterpoint.ir import effects, metadata, ops
from counterpoint.ir.alias import Hazards, waits_of


@dataclass(frozen=True)
class Lifetime:
    """One buffer."""

    maker: Node
    nbytes: int
    first: int
    """Index of the node before which it is allocated."""
    last: int
    """Index of the node after which it is free."""


def lifetimes(nodes: Sequence[Node], hazards: Hazards, held: Collection[Node]) -> list[Lifetime]:
    """Every buffer of a graph. `held` are inputs that the caller keeps alive through the whole graph."""
    index = {node: position for position, node in enumerate(nodes)}
    find, end = hazards.storage.find, len(nodes) - 1
    first: dict[Node, int] = {}
    last: dict[Node, int] = {}
    size: dict[Node, int] = {}
    for position, node in enumerate(nodes):
        root = find(node)
        first.setdefault(root, index[node.all_input_nodes[0]] if _is_element(node, hazards) else position)
        last[root] = max(last.get(root, position), end if node in held else position, _last_use(node, index))
        size[root] = max(size.get(root, 0), _made_bytes(node, hazards))
    return [Lifetime(root, size[root], first[root], last[root]) for root in first if size[root]]


def _last_use(node: Node, index: dict[Node, int]) -> int:
    """A collective in flight holds what it reads until it is waited for."""
    last = index[node]
    for user in node.users:
        last = max(last, index.get(user, last))
        if ops.is_collective(user):
            last = max((last, *(index[wait] for wait in waits_of(user))))
    return last


def _is_element(node: Node, hazards: Hazards) -> bool:
    """Whether the node picks one of several fresh tensors: each is a buffer, made by the node that it is picked of."""
    if node.target is not operator.getitem or not node.all_input_nodes:
        return False
    return hazards.storage.find(node) is not hazards.storage.find(node.all_input_nodes[0])


def _made_bytes(node: Node, hazards: Hazards) -> int:
    if not metadata.has_value(node) or node.op == "output" or ops.is_wait(node):
        return 0
    if effects.is_view_like(node) and not _is_element(node, hazards):
        return 0
    tensors = metadata.tensors_of(node)
    if isinstance(node.meta["val"], (list, tuple)):
        # The elements that are picked are buffers of their own.
        picked = {user.args[1] for user in node.users if user.target is operator.getitem}
        tensors = tuple(tensor for number, tensor in enumerate(tensors) if number not in picked)
    return sum(size_hint(metadata.nbytes_of(tensor)) or 0 for tensor in tensors)


def alive_bytes(count: int, buffers: Sequence[Lifetime]) -> list[int]:
    """Bytes alive while each of `count` nodes runs."""
    change = [0] * (count + 1)
    for buffer in buffers:
        change[buffer.first] += buffer.nbytes
        change[buffer.last + 1] -= buffer.nbytes
    alive, total = [], 0
    for step in change[:count]:
        total += step
        alive.append(total)
    return alive
