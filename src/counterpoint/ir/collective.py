"""Collectives as data, read from the graph and never written: `Collective` is a start and its waits, `CommBlock` adds
the views around it.

Whatever a graph holds is either represented or refused with a reason; nothing is skipped in silence.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch.fx import Graph, Node

from counterpoint.ir import effects, metadata, ops
from counterpoint.ir.groups import Group, group_of
from counterpoint.ir.metadata import Size
from counterpoint.ir.ops import Kind, OpSpec
from counterpoint.ir.reason import Refusal


@dataclass(frozen=True)
class Payload:
    """What crosses the network from this rank, or what this rank gets back."""

    shapes: tuple[tuple[Size, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    devices: tuple[torch.device, ...]
    nbytes: Size
    """Bytes of all tensors together; symbolic when a shape is."""

    @staticmethod
    def of(tensors: Iterable[torch.Tensor]) -> Payload:
        """The payload of some fake tensors."""
        held = tuple(tensors)
        total: Size = 0
        for tensor in held:
            total = total + metadata.nbytes_of(tensor)
        # Lists, which are quicker than generators: a large graph is read tensor by tensor.
        return Payload(
            shapes=tuple([tuple(t.shape) for t in held]),
            dtypes=tuple([t.dtype for t in held]),
            devices=tuple([t.device for t in held]),
            nbytes=total,
        )


@dataclass(frozen=True)
class Result:
    """One tensor that a collective gives back, before and after its wait."""

    value: Node
    """The start itself, or the getitem that picks this tensor from a coalesced start. A start that is waited for as a
    whole (torch 2.15) is one result with all its tensors."""
    waits: tuple[Node, ...]
    """Waits on `value`, in graph order. Exactly one in a well-formed graph; none for operators that need no wait."""


@dataclass(frozen=True)
class Collective:
    """One communicating operator with everything that a pass asks about it."""

    start: Node
    spec: OpSpec
    group: Group
    inputs: tuple[Node, ...]
    written: tuple[Node, ...]
    results: tuple[Result, ...]
    sent: Payload
    received: Payload
    reduce_op: str | None

    @property
    def kind(self) -> Kind:
        """What the collective does."""
        return self.spec.kind

    @cached_property
    def waits(self) -> tuple[Node, ...]:
        """All waits, in order of the results."""
        return tuple(dict.fromkeys(wait for result in self.results for wait in result.waits))

    @property
    def finals(self) -> tuple[Node, ...]:
        """The nodes after which each result may be read: its wait, or the start where none is needed."""
        if not self.spec.waits:
            return tuple(result.value for result in self.results)
        return self.waits


@dataclass(frozen=True)
class CommBlock:
    """A collective that is waited for properly, with the views that belong to its result."""

    collective: Collective
    nodes: tuple[Node, ...]
    """Start, getitems, waits and trailing views, in graph order."""
    outputs: tuple[Node, ...]
    """Those of `nodes` that carry results to the rest of the graph, in graph order."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The payload nodes."""
        return self.collective.inputs

    @property
    def waits(self) -> tuple[Node, ...]:
        """The waits, in order of the results."""
        return self.collective.waits


def read_collective(node: Node) -> Collective | Refusal:
    """Read the collective that a node starts. Refuses only what cannot be read at all."""
    spec = ops.spec_of(node.target) if node.op == "call_function" else None
    if spec is None or spec.kind is Kind.WAIT:
        return _refuse_start(node)
    inputs = ops.tensors(node, spec.payload)
    for needed in (*inputs, node):
        if not metadata.has_value(needed):
            return Refusal("no-metadata", needed.name, f"{needed.target} takes part in {node.target}")
    size = ops.argument(node, spec.group_size) if spec.group_size else None
    group_value = ops.argument(node, spec.group) if spec.group else "peer"
    return Collective(
        start=node,
        spec=spec,
        group=group_of(group_value, size if isinstance(size, int) else None),
        inputs=inputs,
        written=ops.tensors(node, spec.written),
        results=tuple(_results(node, spec)),
        sent=Payload.of(metadata.tensor_of(n) for n in inputs),
        received=Payload.of(metadata.tensors_of(node)),
        reduce_op=ops.reduce_op_of(node),
    )


def _refuse_start(node: Node) -> Refusal:
    if effects.effect_of(node) is effects.Effect.BARRIER:
        return Refusal("unknown-operator", node.name, str(node.target))
    return Refusal("not-a-collective", node.name, f"{node.op} {node.target}")


def _results(node: Node, spec: OpSpec) -> Iterator[Result]:
    listed = isinstance(metadata.value_of(node), (list, tuple))
    taken = [n for n in node.users if n.target is operator.getitem] if listed else [node]
    at_once = listed and any(ops.is_wait(user) for user in node.users)
    for value in sorted([*taken, node] if at_once else taken):
        waits = tuple(sorted([user for user in value.users if ops.is_wait(user)])) if spec.waits else ()
        yield Result(value, waits)


def get_comm_block(node: Node) -> CommBlock | Refusal:
    """The block around a start: one wait a result, no reader before it, and the trailing views."""
    collective = read_collective(node)
    if isinstance(collective, Refusal):
        return collective
    refusal = _refuse_waits(collective) if collective.spec.waits else None
    if refusal is not None:
        return refusal
    nodes = {node, *(result.value for result in collective.results), *collective.waits}
    _grow_views(list(collective.finals), nodes)
    ordered = tuple(sorted(nodes))
    # Before the waits there is nothing but the start and the parts of its result.
    before = {node, *(result.value for result in collective.results)}.difference(collective.finals)
    outputs = tuple([n for n in ordered if n not in before and (not n.users or not nodes.issuperset(n.users))])
    return CommBlock(collective, ordered, outputs)


def _refuse_waits(collective: Collective) -> Refusal | None:
    start, received = collective.start, len(collective.received.shapes)
    if not collective.waits:
        return Refusal("no-wait", start.name, str(start.target))
    refusals = (_refuse_result(result, collective) for result in collective.results)
    first = next((refusal for refusal in refusals if refusal is not None), None)
    if first is not None:
        return first
    readers = [user for user in start.users if not ops.is_wait(user)]
    escaping = [user.name for user in readers if user.target is not operator.getitem]
    if escaping:
        return Refusal("result-escapes", start.name, f"used by {', '.join(escaping)}")
    whole = collective.spec.coalesced and any(result.value is start for result in collective.results)
    if len(collective.results) != (1 if whole else received):
        return Refusal("partly-waited", start.name, f"{len(collective.results)} of {received} tensors are taken")
    return None


def _refuse_result(result: Result, collective: Collective) -> Refusal | None:
    value = result.value
    if not result.waits:
        return Refusal("partly-waited", value.name, str(collective.start.target))
    if len(result.waits) > 1:
        return Refusal("several-waits", value.name, ", ".join(wait.name for wait in result.waits))
    readers = [user.name for user in value.users if not ops.is_wait(user)]
    if readers and value is not collective.start:
        return Refusal("result-escapes", value.name, f"used by {', '.join(readers)}")
    return None


def _grow_views(frontier: list[Node], nodes: set[Node]) -> None:
    """Add every view that looks at nothing but the block."""
    while frontier:
        for user in frontier.pop().users:
            if user not in nodes and effects.is_view_like(user) and set(user.all_input_nodes) <= nodes:
                nodes.add(user)
                frontier.append(user)


def get_all_comm_blocks(graph: Graph) -> tuple[CommBlock | Refusal, ...]:
    """Every start of the graph in order, as a block or as the reason why it is none."""
    return tuple(get_comm_block(node) for node in graph.nodes if ops.is_collective(node))


def get_all_collectives(graph: Graph) -> tuple[Collective | Refusal, ...]:
    """Every start of the graph in order, with the laxer reading of `read_collective`."""
    return tuple(read_collective(node) for node in graph.nodes if ops.is_collective(node))
