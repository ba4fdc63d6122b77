"""Recognising gradient reductions: which all-reduces sum gradients, and the arithmetic that stands around them.

Real captures differ in what they put between a gradient and its all-reduce and behind its wait: a division by the
number of ranks, a multiplication by its reciprocal, a cast to the element type that travels and one back, views. Steps
that treat every element alike can as well be taken on all gradients of a bucket at once, so they are read here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch.fx import Node

from counterpoint._torch import OpOverload
from counterpoint.ir import metadata, ops
from counterpoint.ir.alias import Hazards
from counterpoint.ir.groups import group_of
from counterpoint.ir.ops import Kind
from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.passes.bucket_plan import Member, kind_of, read_member

ATEN = torch.ops.aten

_SCALES: frozenset[OpOverload] = frozenset({ATEN.div.Tensor, ATEN.div.Scalar, ATEN.mul.Tensor, ATEN.mul.Scalar})
_KEEPING_ORDER = frozenset(
    {
        ATEN.view.default,
        ATEN._unsafe_view.default,
        ATEN.reshape.default,
        ATEN.flatten.using_ints,
        ATEN.unflatten.int,
        ATEN.squeeze.default,
        ATEN.squeeze.dim,
        ATEN.squeeze.dims,
        ATEN.unsqueeze.default,
        ATEN.alias.default,
        ATEN.detach.default,
    }
)
"""Views that leave the elements in their order, so that an elementwise step may as well come before as after."""


@dataclass(frozen=True)
class Step:
    """An elementwise operator with one tensor: a division or multiplication by a number, or a cast."""

    node: Node
    source: Node
    by: int | float | None
    """The number; None for a cast."""
    dtypes: tuple[torch.dtype, torch.dtype]
    """Of what goes in and what comes out."""

    @property
    def is_scale(self) -> bool:
        """Whether it multiplies or divides, rather than casts."""
        return self.by is not None

    @property
    def what(self) -> tuple[object, ...]:
        """Equal for steps that do the same to equal elements. As text, since 0.0 equals -0.0 and no NaN itself."""
        return self.node.target, repr(self.by), self.dtypes


@dataclass(frozen=True)
class Gradient:
    """An all-reduce of a gradient."""

    member: Member
    before: tuple[Step, ...]
    """From the start back towards the gradient."""
    after: tuple[Step, ...]
    """From the wait on."""

    @property
    def start(self) -> Node:
        """The node that starts the reduction."""
        return self.member.start

    def value(self, steps: int) -> Node:
        """What goes into the last `steps` steps before the start."""
        return self.before[steps - 1].source if steps else self.member.collective.inputs[0]

    def result(self, steps: int) -> Node:
        """What comes out of the first `steps` steps behind the wait."""
        return self.after[steps - 1].node if steps else self.member.wait


def read_gradients(view: GraphView) -> tuple[list[Gradient], list[tuple[Node, Refusal]]]:
    """The gradient reductions of a graph in the order in which gradients become ready, and why others are none."""
    needed = _needed_on_their_group(view)
    found: list[Gradient] = []
    refused: list[tuple[Node, Refusal]] = []
    for start in view.starts:
        if kind_of(start) is not Kind.ALL_REDUCE:
            continue
        member = read_member(start, multi_dtype=False)
        if isinstance(member, Refusal):
            refused.append((start, member))
        elif start in needed:
            refused.append((start, Refusal("not-a-gradient", start.name, f"group {member.key.group}")))
        else:
            found.append(read_gradient(member, view.hazards))
    return sorted(found, key=lambda gradient: view.index(gradient.member.collective.inputs[0])), refused


def read_gradient(member: Member, hazards: Hazards) -> Gradient:
    """The arithmetic around one reduction."""
    own = {member.start, member.wait}
    before = takewhile(lambda step: _is_private(step.node, own, hazards), _steps_before(member))
    # Without this, a step behind the wait could read the result before or after somebody overwrites it.
    after = _steps_after(member) if _is_private(member.wait, own, hazards) else ()
    return Gradient(member, _to_last_scale(before), _to_last_scale(after))


def _needed_on_their_group(view: GraphView) -> set[Node]:
    """The starts whose result flows into a later collective of their own group.

    A gradient is the last thing that its group sends for a parameter; what is sent in between, such as activations or
    statistics, feeds what is sent later.
    """
    numbers: dict[Hashable, int] = {}
    feeds: dict[Node, int] = {}
    """For each node the groups, as bits, of the collectives that its value flows into; only where there are any."""
    found: set[Node] = set()
    starts = set(view.starts)
    for node in reversed(view.nodes):
        into = feeds.get(node, 0)
        if node in starts:
            group = _group_bit(node, numbers)
            if into & group:
                found.add(node)
            into |= group
        if into:
            for source in node.all_input_nodes:
                feeds[source] = feeds.get(source, 0) | into
    return found


def _group_bit(start: Node, numbers: dict[Hashable, int]) -> int:
    spec = ops.spec_of(start.target)
    if spec is None or spec.group is None:
        return 0
    return 1 << numbers.setdefault(group_of(ops.argument(start, spec.group)).key, len(numbers))


def _steps_before(member: Member) -> Iterator[Step]:
    """Steps that serve nothing but this reduction; views between them are looked through."""
    user, node = member.start, member.collective.inputs[0]
    while list(node.users) == [user]:
        step = read_step(node)
        if step is not None:
            yield step
        if step is None and not _keeps_order(node):
            return
        user, node = node, step.source if step is not None else ops.argument(node, "self")


def _steps_after(member: Member) -> Iterator[Step]:
    node = member.wait
    while len(node.users) == 1:
        (user,) = node.users
        step = read_step(user)
        if step is not None and step.source is node:
            yield step
        elif not _keeps_order(user):
            return
        node = user


def read_step(node: Node) -> Step | None:
    """The node as an elementwise step, or None."""
    if node.op != "call_function" or not metadata.has_value(node):
        return None
    if node.target in _SCALES:
        by = ops.argument(node, "other")
        return _step(node, ops.argument(node, "self"), by) if type(by) in (int, float) else None
    if node.target is ATEN._to_copy.default and set(node.kwargs) <= {"dtype"}:
        return _step(node, ops.argument(node, "self"), None)
    if node.target is torch.ops.prims.convert_element_type.default:
        return _step(node, ops.argument(node, "a"), None)
    return None


def _step(node: Node, source: Any, by: int | float | None) -> Step | None:
    if not isinstance(source, Node) or not metadata.has_value(source):
        return None
    return Step(node, source, by, (metadata.tensor_of(source).dtype, metadata.tensor_of(node).dtype))


def source_of(node: Node) -> Node:
    """The node that a part of a gradient reduction makes something of: a step, a view, the wait or the start."""
    step = read_step(node)
    if step is not None:
        return step.source
    spec = ops.spec_of(node.target)
    source: Node = ops.argument(node, spec.payload[0] if spec is not None else "self")
    return source


def is_constant(shape: Sequence[Any]) -> bool:
    """Whether no size is symbolic."""
    return all(type(size) is int for size in shape)


def _keeps_order(node: Node) -> bool:
    """Whether the node is a view to look through. Symbolic sizes would have to be computed for the new shape."""
    looks = node.op == "call_function" and node.target in _KEEPING_ORDER
    return looks and is_constant(metadata.tensor_of(node).shape)


def _is_private(node: Node, own: set[Node], hazards: Hazards) -> bool:
    """Whether only the reduction itself writes where the value lies."""
    return set(hazards.writers(node)) <= own


def _to_last_scale(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Casts are taken together only to get at a scale behind them: packed before a cast, the bucket is larger."""
    found = tuple(steps)
    return found[: max((n for n, step in enumerate(found, 1) if step.is_scale), default=0)]


def common_steps(chains: Sequence[Sequence[Step]], *, scales_only: bool = False) -> int:
    """How many first steps all chains share, and can therefore take together."""
    shared = 0
    for steps in zip(*chains, strict=False):
        if len({step.what for step in steps}) > 1 or (scales_only and not steps[0].is_scale):
            break
        shared += 1
    return len(_to_last_scale(chains[0][:shared]))
