"""What inductor's bucketing asks about single nodes: predicates, groups, keys. All from the one table of operators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import torch
from torch.fx import Node
from torch.utils._ordered_set import OrderedSet

from counterpoint.ir import metadata, ops
from counterpoint.ir.groups import group_of
from counterpoint.ir.ops import Form, Kind
from counterpoint.passes.cast_folding import is_cast

BucketMode: TypeAlias = Literal["default", "custom_ops", "custom_ops_multidtype", "coalesced"]

_FUNCTIONAL = "_c10d_functional"


def _is(node: Node, kind: Kind, *forms: Form) -> bool:
    spec = ops.spec_of(node.target) if node.op == "call_function" else None
    return (
        spec is not None
        and spec.kind is kind
        and spec.form in (forms or (Form.FUNCTIONAL,))
        and not spec.coalesced
        and spec.family[0] == _FUNCTIONAL
    )


def is_all_gather_into_tensor(node: Node) -> bool:
    """Whether the node gathers one tensor, into a new buffer or a given one."""
    return _is(node, Kind.ALL_GATHER, Form.FUNCTIONAL, Form.OUT)


def is_reduce_scatter_tensor(node: Node) -> bool:
    """Whether the node reduces and scatters one tensor into a new buffer."""
    return _is(node, Kind.REDUCE_SCATTER)


def is_all_reduce_tensor(node: Node) -> bool:
    """Whether the node reduces one tensor into a new buffer."""
    return _is(node, Kind.ALL_REDUCE)


def is_any_all_reduce(node: Node) -> bool:
    """Whether the node reduces one tensor, into a new buffer or in its own, as after inductor's reinplacing."""
    return _is(node, Kind.ALL_REDUCE, Form.FUNCTIONAL, Form.IN_PLACE)


def is_all_to_all_tensor(node: Node) -> bool:
    """Whether the node exchanges one tensor."""
    return _is(node, Kind.ALL_TO_ALL)


def is_wait_tensor(node: Node) -> bool:
    """Whether the node waits for one tensor."""
    return _is(node, Kind.WAIT)


def waited_for(wait: Node) -> Node:
    """What a wait waits for."""
    (source,) = ops.waited_nodes(wait)
    return source


def is_wait_tensor_from_all_gather_into_tensor(node: Node) -> bool:
    """Whether the node waits for a gather of one tensor."""
    return is_wait_tensor(node) and is_all_gather_into_tensor(waited_for(node))


def get_collective_type(node: Node) -> str:
    """The kind of a collective that can be bucketed, as a word; empty for other nodes."""
    names = {
        "all_gather": is_all_gather_into_tensor,
        "reduce_scatter": is_reduce_scatter_tensor,
        "all_reduce": is_all_reduce_tensor,
    }
    return next((name for name, holds in names.items() if holds(node)), "")


def group_name_of(node: Node) -> Any:
    """What names the group of a collective, the same for equal groups, also where a node of the graph computes it."""
    return group_of(ops.argument(node, "group_name")).key


def bucket_key(node: Node, mode: BucketMode | None = None) -> object | None:
    """What collectives of one bucket have in common: group, reduction and, unless types may mix, element type."""
    if is_all_gather_into_tensor(node):
        key: tuple[Any, ...] = (group_name_of(node),)
        return key if mode and "multidtype" in mode else (*key, metadata.tensor_of(node).dtype)
    if is_reduce_scatter_tensor(node) or is_any_all_reduce(node):
        return group_name_of(node), ops.reduce_op_of(node), metadata.tensor_of(node).dtype
    return None


def get_full_bucket_key(node: Node, bucket_mode: BucketMode | None) -> tuple[str, Any]:
    """The kind of a collective and its key."""
    return get_collective_type(node), bucket_key(node, mode=bucket_mode)


def has_mergeable_all_gather_convert_dtype(n: Node) -> bool:
    """Whether the node gathers what a cast makes for it alone, so that packing can do the cast."""
    if not is_all_gather_into_tensor(n):
        return False
    source = ops.argument(n, "input")
    return isinstance(source, Node) and is_cast(source) and len(source.users) == 1


def is_fsdp_all_gather(node: Node, all_node_ancestors: Any = None) -> bool:
    """Whether the node gathers what is made of exactly one placeholder, such as a parameter.

    all_node_ancestors: torch's `BitsetAncestors`, where the caller has one already.
    """
    if not is_all_gather_into_tensor(node):
        return False
    found: Iterable[Node] = _ancestors(node) if all_node_ancestors is None else all_node_ancestors.iter_ancestors(node)
    return sum(ancestor.op == "placeholder" for ancestor in found) == 1


def _ancestors(node: Node) -> set[Node]:
    seen: set[Node] = set()
    frontier = list(node.all_input_nodes)
    while frontier:
        source = frontier.pop()
        if source not in seen:
            seen.add(source)
            frontier += source.all_input_nodes
    return seen


def is_fsdp_reduce_scatter(node: Node) -> bool:
    """Whether the node scatters what only leaves the graph, changed at most by operators of one tensor."""
    if not is_reduce_scatter_tensor(node):
        return False
    seen, frontier = {node}, [node]
    while frontier:
        users = [user for user in frontier.pop().users if user.op != "output" and user not in seen]
        if any(len(user.all_input_nodes) != 1 for user in users):
            return False
        seen.update(users)
        frontier += users
    return True


def collect_node_descendants(graph: torch.fx.Graph) -> dict[Node, OrderedSet[Node]]:
    """Everything that uses a node's value, directly or through others. Takes memory with the square of the graph."""
    found: dict[Node, OrderedSet[Node]] = {}
    missing = {node: len(node.users) for node in graph.nodes}
    ready = [node for node, count in missing.items() if not count]
    while ready:
        node = ready.pop()
        below = found.setdefault(node, OrderedSet())
        for source in node.all_input_nodes:
            above = found.setdefault(source, OrderedSet())
            above |= below
            above.add(node)
            missing[source] -= 1
            if not missing[source]:
                ready.append(source)
    return found
