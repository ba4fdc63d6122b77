"""How much memory is alive at each node of a graph: a buffer lives from its maker to the last use of any view of it."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
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
    end = len(nodes) - 1
    homes = _Homes(hazards)
    first: dict[_Home, int] = {}
    last: dict[_Home, int] = {}
    size: dict[_Home, int] = {}
    for position, node in enumerate(nodes):
        home = homes.of(node)
        first.setdefault(home, index[node.all_input_nodes[0]] if _is_element(node, hazards) else position)
        last[home] = max(last.get(home, position), end if node in held else position, _last_use(node, index))
        size[home] = size.get(home, 0) + _made_bytes(node, hazards)
    return [Lifetime(home.node, size[home], first[home], last[home]) for home in first if size[home]]


class _Home(NamedTuple):
    """A buffer: a storage class goes by any one of its nodes, a copy by the node that makes it."""

    node: Node
    copied: bool


class _Homes:
    """Which buffer each node lies in. Nodes are asked for in graph order."""

    def __init__(self, hazards: Hazards) -> None:
        self._hazards = hazards
        # Sharing is "may share": what was copied after all, and views of it, lie elsewhere than the storage class says.
        self._copied: dict[Node, _Home] = {}

    def of(self, node: Node) -> _Home:
        """The buffer of a node."""
        sources = effects.aliased_nodes(node)
        home = _Home(node, True) if _copied_bytes(node) else self._copied.get(sources[0]) if sources else None
        if home is None:
            return _Home(self._hazards.storage.find(node), False)
        self._copied[node] = home
        return home


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
    if not _is_element(node, hazards) and (effects.is_view_like(node) or effects.aliased_nodes(node)):
        return _copied_bytes(node)
    tensors = metadata.tensors_of(node)
    if isinstance(node.meta["val"], (list, tuple)):
        # The elements that are picked are buffers of their own.
        picked = {user.args[1] for user in node.users if user.target is operator.getitem}
        tensors = tuple(tensor for number, tensor in enumerate(tensors) if number not in picked)
    return sum(size_hint(metadata.nbytes_of(tensor)) or 0 for tensor in tensors)


def _copied_bytes(node: Node) -> int:
    """What an operator makes that returns a view where it can and else copies: it can of what lies in one piece."""
    if node.target not in effects.MAY_ALIAS or not metadata.has_value(node):
        return 0
    source = node.all_input_nodes[0]
    if not metadata.has_value(source):
        return 0
    tensor, before = metadata.tensor_of(node), metadata.tensor_of(source)
    same = (tensor.dtype, tensor.device) == (before.dtype, before.device)
    return 0 if same and _in_one_piece(before) else size_hint(metadata.nbytes_of(tensor)) or 0


def _in_one_piece(tensor: torch.Tensor) -> bool:
    """Whether the elements lie row by row without gaps, by the hints of sizes."""
    expected: int | None = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        length = size_hint(size)
        if length is None or expected is None:
            return True
        if length != 1 and size_hint(stride) != expected:
            return False
        expected *= length
    return True


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
