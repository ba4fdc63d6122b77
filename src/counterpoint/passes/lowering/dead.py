"""Inputs that die with their collective: their memory may hold the result."""

from __future__ import annotations

from torch.fx import Node

from counterpoint._torch import FakeTensor, is_constant_sized
from counterpoint.ir import effects, metadata, ops
from counterpoint.ir.alias import waits_of
from counterpoint.ir.effects import Effect
from counterpoint.ir.view import GraphView


def dies_at(view: GraphView, tensor: Node, start: Node, anchor: Node) -> bool:
    """Whether nobody looks at a tensor's memory from the anchor on, except the start and what belongs to it.

    The memory must be the graph's own, of a known size and in row-major order.
    """
    value = metadata.tensor_of(tensor)
    if not isinstance(value, FakeTensor) or not is_constant_sized(value) or not value.is_contiguous():
        return False
    storage, own = view.hazards.storage, {start, *waits_of(start)}
    members = storage.members(storage.find(tensor))
    if not all(map(_is_made_here, members)):
        return False
    last = view.index(anchor)
    users = {user for member in members if member not in own for user in member.users}
    # What another collective sends must stay as it is until that one's wait.
    users |= {wait for user in users if ops.is_collective(user) for wait in waits_of(user)}
    return all(user in own or (user.op != "output" and view.index(user) < last) for user in users)


def _is_made_here(node: Node) -> bool:
    return node.op == "call_function" and effects.effect_of(node) not in (Effect.BARRIER,)
