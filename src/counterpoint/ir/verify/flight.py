"""Between a start and its wait, nobody touches what is received and nobody overwrites what is sent."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from counterpoint._torch import OpOverload
from counterpoint.ir import effects, ops
from counterpoint.ir.effects import Effect
from counterpoint.ir.storage import Storage
from counterpoint.ir.verify.finding import Finding, at
from counterpoint.ir.verify.waits import Pending, Waits

Extent = tuple[Node, tuple[int, int] | None]
"""The node whose memory a chain of views shows, and the bytes of it that they show."""


@dataclass(frozen=True)
class Held:
    """A buffer that a collective in flight uses."""

    node: Node
    received: bool
    """Written by the collective, so that reading is wrong as well."""
    by: tuple[Pending, ...]
    """What has to be waited for before it is free."""


def check_flight(graph: Graph) -> Iterator[Finding]:
    """Accesses to buffers in flight."""
    storage = Storage()
    for node in graph.nodes:
        storage.add(node)
    waits = Waits(storage)
    flying: dict[Node, list[Held]] = {}
    anchors: dict[Node, Extent] = {}
    for node in graph.nodes:
        if ops.is_wait(node):
            released = waits.wait(node)
            if isinstance(released, tuple):
                _release(flying, storage, waits, released)
            continue
        if flying and not _only_looks(node):
            yield from _accesses(node, storage, flying, anchors)
        if ops.is_collective(node):
            for held in _hold(node, waits.start(node)):
                flying.setdefault(storage.find(held.node), []).append(held)


def _only_looks(node: Node) -> bool:
    """Whether the node touches no data: the output hands buffers on, views show them, unknown wrappers may do so."""
    if node.op != "call_function" or effects.is_view_like(node):
        return True
    effect = effects.effect_of(node)
    if effect is Effect.BARRIER:
        return not isinstance(node.target, OpOverload)
    return effect is Effect.PURE and bool(effects.aliased_nodes(node))


def _hold(start: Node, made: list[Pending]) -> Iterator[Held]:
    spec = ops.spec_of(start.target)
    if spec is None or not made:
        return
    written = ops.tensors(start, spec.written)
    sent = tuple(node for node in ops.tensors(start, spec.payload) if node not in written)
    for nodes, received in ((written, True), (sent, False)):
        for i, node in enumerate(nodes):
            one = (start, i)
            if one in made:
                yield Held(node, received, (one,))
            elif len(nodes) != len(made):
                yield Held(node, received, tuple(made))
    yield from (Held(node, True, ((start, i),)) for node, i in _results(start) if (start, i) in made)


def _results(start: Node) -> Iterator[tuple[Node, int]]:
    if not isinstance(start.meta.get("val"), (list, tuple)):
        yield start, 0
        return
    for user in start.users:
        if user.target is operator.getitem and isinstance(user.args[1], int):
            yield user, user.args[1]


def _release(flying: dict[Node, list[Held]], storage: Storage, waits: Waits, one: Pending) -> None:
    start = one[0]
    spec = ops.spec_of(start.target)
    nodes = [*ops.tensors(start, (*spec.payload, *spec.written)), *(n for n, _ in _results(start))] if spec else []
    for root in {storage.find(node) for node in nodes}:
        left = [held for held in flying.get(root, ()) if any(by in waits.pending for by in held.by)]
        if left:
            flying[root] = left
        else:
            flying.pop(root, None)


def _accesses(
    node: Node,
    storage: Storage,
    flying: dict[Node, list[Held]],
    anchors: dict[Node, Extent],
) -> Iterator[Finding]:
    written = effects.written_nodes(node)
    for operand in node.all_input_nodes:
        for held in flying.get(storage.find(operand), ()):
            writes = operand in written
            if not (writes or held.received) or _apart(operand, held.node, anchors):
                continue
            code = "written-in-flight" if writes else "read-in-flight"
            role = "receives into" if held.received else "sends"
            partner = f"{held.node.name}, which {held.by[0][0].name} {role}"
            yield at(code, node, f"{operand.name} shares memory with {partner}")
            break


def _apart(a: Node, b: Node, anchors: dict[Node, Extent]) -> bool:
    """Whether two views of one buffer certainly show different parts of it."""
    (base, first), (other, second) = _extent(a, anchors), _extent(b, anchors)
    if base is not other or first is None or second is None:
        return False
    return first[1] <= second[0] or second[1] <= first[0]


def _extent(node: Node, known: dict[Node, Extent]) -> Extent:
    if node not in known:
        shown = base = _buffer(node)
        while effects.is_view_like(base) and (shared := effects.aliased_nodes(base)):
            base = _buffer(shared[0])
        known[node] = base, _bytes(shown)
    return known[node]


def _buffer(node: Node) -> Node:
    """The node whose buffer a wait, or a collective that has no buffer of its own, gives back."""
    while True:
        source, index = node, 0
        if ops.is_wait(node):
            node = ops.argument(node, "tensor")
            continue
        if node.target is operator.getitem and isinstance(node.args[0], Node) and isinstance(node.args[1], int):
            source, index = node.args[0], node.args[1]
        spec = ops.spec_of(source.target)
        written = ops.tensors(source, spec.written) if spec is not None else ()
        if index >= len(written):
            return node
        node = written[index]


def _bytes(node: Node) -> tuple[int, int] | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    offset, sizes, strides = value.storage_offset(), value.shape, value.stride()
    if not all(isinstance(number, int) for number in (offset, *sizes, *strides)):
        return None
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if 0 not in sizes else 0
    first, last = int(offset), int(offset + span)
    return first * value.element_size(), last * value.element_size()
