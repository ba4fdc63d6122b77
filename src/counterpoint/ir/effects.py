"""What a node does beside computing its result: the ground on which every reordering stands.

The rule for what is not known: an operator that may communicate, or that has effects nobody declared, is a barrier.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch
from torch.fx import GraphModule, Node

from counterpoint._torch import HigherOrderOperator, OpOverload, formals, has_registered_effect, once_an_operator
from counterpoint.ir import ops


class Effect(Enum):
    """What a node does beside computing its result."""

    PURE = "pure"
    COLLECTIVE = "collective"
    """Starts communication; order matters among collectives of one group."""
    WAIT = "wait"
    MUTATES = "mutates"
    """Writes into the buffers that `written_nodes` names."""
    RANDOM = "random"
    """Draws from a random generator; order matters among draws."""
    BARRIER = "barrier"
    """Anything may happen: nothing that communicates, writes or draws may cross it."""


_ARITHMETIC = (
    "getitem add sub mul truediv floordiv mod pow neg pos abs and_ or_ xor not_ invert "
    "eq ne lt le gt ge lshift rshift index"
)
_SYMBOLIC = "sym_float sym_int sym_max sym_min sym_not sym_ite sym_sum sym_sqrt"

_PURE_BUILTINS: frozenset[Any] = frozenset(
    {getattr(operator, name) for name in _ARITHMETIC.split()}
    | {getattr(torch, name) for name in _SYMBOLIC.split() if hasattr(torch, name)}
    | {max, min, round, int, float, bool, abs}
)

_GROUP_ARGUMENTS = frozenset({"group", "group_name", "process_group", "pg", "mesh"})

_PURE_HIGHER_ORDER = frozenset({"auto_functionalized", "auto_functionalized_v2", "triton_kernel_wrapper_functional"})
"""Wrappers that return copies of what the wrapped kernel writes."""


def effect_of(node: Node) -> Effect:
    """The strongest effect of a node; unknown means BARRIER."""
    if isinstance(node.target, OpOverload):
        return effect_of_operator(node.target)
    if node.op in ("placeholder", "get_attr", "output"):
        return Effect.PURE
    if node.op != "call_function":
        return Effect.BARRIER
    if isinstance(node.target, HigherOrderOperator):
        return _effect_of_higher_order(node)
    return Effect.PURE if node.target in _PURE_BUILTINS else Effect.BARRIER


@once_an_operator
def effect_of_operator(overload: OpOverload) -> Effect:
    """The strongest effect of an operator."""
    spec = ops.spec_of(overload)
    if spec is not None:
        return Effect.WAIT if spec.kind is ops.Kind.WAIT else Effect.COLLECTIVE
    if overload.name().split(".")[0] in ops.GROUP_GETTERS:
        return Effect.PURE
    if overload.namespace in ops.COMMUNICATING_NAMESPACES or has_registered_effect(overload):
        return Effect.BARRIER
    arguments = formals(overload)
    if any(formal.name in _GROUP_ARGUMENTS for formal in arguments):
        return Effect.BARRIER
    if any(formal.written for formal in arguments):
        return Effect.MUTATES
    if torch.Tag.nondeterministic_seeded in overload.tags:
        return Effect.RANDOM
    return Effect.PURE


def _effect_of_higher_order(node: Node) -> Effect:
    name = node.target.name() if isinstance(node.target, HigherOrderOperator) else ""
    wrapped = [a for a in node.args if isinstance(a, OpOverload)]
    if name in _PURE_HIGHER_ORDER:
        inner = {effect_of_operator(overload) for overload in wrapped}
        return Effect.PURE if inner <= {Effect.PURE, Effect.MUTATES} else Effect.BARRIER
    bodies = list(subgraphs(node))
    if not bodies or wrapped:
        return Effect.BARRIER
    inside = {effect_of(inner) for body in bodies for inner in body.graph.nodes}
    if inside == {Effect.PURE}:
        return Effect.PURE
    return Effect.RANDOM if inside <= {Effect.PURE, Effect.RANDOM} else Effect.BARRIER


def subgraphs(node: Node) -> Iterator[GraphModule]:
    """The graph modules that a higher-order call runs."""
    owner = node.graph.owning_module
    for source in node.all_input_nodes:
        if source.op == "get_attr" and owner is not None:
            value: object = owner
            for part in str(source.target).split("."):
                value = getattr(value, part, None)
            if isinstance(value, GraphModule):
                yield value


@once_an_operator
def written_names(overload: OpOverload) -> tuple[str, ...]:
    """The arguments whose buffers an operator overwrites."""
    spec = ops.spec_of(overload)
    return spec.written if spec is not None else tuple(f.name for f in formals(overload) if f.written)


@once_an_operator
def _aliased_names(overload: OpOverload) -> tuple[str, ...]:
    names = tuple(formal.name for formal in formals(overload) if formal.aliases)
    spec = ops.spec_of(overload)
    if spec is not None and spec.kind is ops.Kind.WAIT:
        # It gives back what it waits for, whatever the schema says.
        return spec.payload
    if spec is not None:
        return tuple(dict.fromkeys((*names, *spec.written)))
    return ("self",) if overload in MAY_ALIAS else names


def written_nodes(node: Node) -> tuple[Node, ...]:
    """The nodes whose buffers this node writes. A barrier may write anything; this names only what is declared."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return ()
    return ops.tensors(node, written_names(node.target))


def aliased_nodes(node: Node) -> tuple[Node, ...]:
    """The nodes whose storage this node's result may share: views, in-place results, list elements, waits."""
    if isinstance(node.target, OpOverload):
        names = _aliased_names(node.target)
        return ops.tensors(node, names) if names else ()
    if node.op == "call_function" and node.target is operator.getitem:
        return tuple(node.all_input_nodes[:1])
    return ()


def _overloads(*names: str) -> frozenset[OpOverload]:
    return frozenset(
        getattr(getattr(torch.ops.aten, packet), overload)
        for packet, overload in (name.split(".") for name in names)
        if hasattr(torch.ops.aten, packet) and hasattr(getattr(torch.ops.aten, packet), overload)
    )


# They return the input, or a view of it, where nothing needs to change, and copy elsewhere; what the schemas say of it
# is no guide.
MAY_ALIAS = _overloads(
    "reshape.default",
    "contiguous.default",
    "to.dtype",
    "to.device",
    "to.dtype_layout",
    "flatten.using_ints",
    # Always a view; declared fresh because its input must not be used again.
    "_unsafe_view.default",
)


def is_plain_call(node: Node) -> bool:
    """Whether the node only reads and makes fresh memory. Most do, and a large graph is read in half the time for
    asking this first."""
    return isinstance(node.target, OpOverload) and is_plain(node.target)


@once_an_operator
def is_plain(overload: OpOverload) -> bool:
    """Whether the operator reads its arguments, returns fresh memory and does nothing else, as most do."""
    pure = effect_of_operator(overload) is Effect.PURE
    return pure and not _aliased_names(overload)


_SHAPE_ONLY = _overloads(
    "view.default",
    "view.dtype",
    "_unsafe_view.default",
    "reshape.default",
    "flatten.using_ints",
    "unflatten.int",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "unsqueeze.default",
    "alias.default",
    "detach.default",
    "permute.default",
    "transpose.int",
    "t.default",
    "expand.default",
    "as_strided.default",
    "slice.Tensor",
    "narrow.default",
    "select.int",
    "split.Tensor",
    "split_with_sizes.default",
    "chunk.default",
    "unbind.int",
)


def is_view_like(node: Node) -> bool:
    """Whether the node only looks at its input in another shape, or picks an element of a list."""
    if isinstance(node.target, OpOverload):
        return _reshapes(node.target)
    return node.op == "call_function" and node.target is operator.getitem


@once_an_operator
def _reshapes(overload: OpOverload) -> bool:
    return overload in _SHAPE_ONLY


def only_looks(node: Node) -> bool:
    """Whether the node surely makes a view and copies nothing, so that it does not read what its storage holds."""
    if isinstance(node.target, OpOverload):
        return _only_looks(node.target)
    return node.op == "call_function" and node.target is operator.getitem


@once_an_operator
def _only_looks(overload: OpOverload) -> bool:
    return overload in _SHAPE_ONLY and overload not in MAY_ALIAS
