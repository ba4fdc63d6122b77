"""Writing the chosen form into the graph, one transaction a collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from counterpoint._torch import OpOverload
from counterpoint.errors import GraphError
from counterpoint.ir import metadata, ops
from counterpoint.ir.edit import GraphEditor, Transaction
from counterpoint.ir.ops import Form, OpSpec
from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.passes.book import carrying
from counterpoint.passes.lowering.calls import Candidate
from counterpoint.passes.lowering.choice import Choice, operator_of
from counterpoint.passes.lowering.dead import dies_at


@dataclass(frozen=True)
class Lowered:
    """A collective in the form that it is to get."""

    candidate: Candidate
    choice: Choice | None
    """None where the library keeps it, over its input's memory."""
    overload: OpOverload
    spec: OpSpec
    anchor: Node
    """Before this node the new start stands."""

    @property
    def in_place(self) -> bool:
        """Whether the result lies in the input's memory."""
        return self.spec.form is Form.IN_PLACE

    @property
    def text(self) -> str:
        """As the ledger says it."""
        return f"{self.way}, in place" if self.in_place else self.way

    @property
    def way(self) -> str:
        """The way, in words."""
        if self.choice is None:
            return "library"
        if self.choice.automatic:
            return "one-shot or two-shot by size"
        return self.choice.way.value


def planned(view: GraphView, candidate: Candidate, choice: Choice) -> Lowered | Refusal:
    """How a choice is carried out."""
    start, spec = candidate.start, ops.TABLE[operator_of(choice, candidate.call.kind)]
    anchor = start if spec.waits else _place(candidate)
    twin = ops.TABLE.get(f"{spec.name}_")
    if twin is not None and _all_die(view, candidate, anchor):
        spec = twin
    try:
        overload = ops.overload_of(spec)
    except GraphError as error:
        return Refusal("other-form-lacking", start.name, error.what)
    return Lowered(candidate, choice, overload, spec, anchor)


def planned_in_place(view: GraphView, candidate: Candidate) -> Lowered | None:
    """The library's form over its inputs, where all of them die there."""
    spec, start = candidate.block.collective.spec, candidate.start
    twin = ops.form_of(spec, form=Form.IN_PLACE, coalesced=spec.coalesced)
    if twin is None or not _all_die(view, candidate, start):
        return None
    return Lowered(candidate, None, ops.overload_of(twin), twin, start)


def _all_die(view: GraphView, candidate: Candidate, anchor: Node) -> bool:
    """Whether the memory of every input, each its own, may hold a result from the anchor on."""
    inputs, find = candidate.block.collective.inputs, view.hazards.storage.find
    apart = len({find(each) for each in inputs}) == len(inputs)
    return apart and all(dies_at(view, each, candidate.start, anchor) for each in inputs)


def _place(candidate: Candidate) -> Node:
    """Where a form that blocks stands: where the wait stood, so that ranks come to it as late as before, except that
    what is sent is let go of early where it is more than what is received."""
    collective = candidate.block.collective
    sent, received = collective.sent.nbytes, collective.received.nbytes
    early = isinstance(sent, int) and isinstance(received, int) and sent > received
    return collective.start if early else min(collective.waits)


def carry_out(editor: GraphEditor, plan: Lowered) -> Refusal | None:
    """Rewrite one collective; why not, where that was refused."""
    name = plan.candidate.start.name

    def rewrite(tx: Transaction) -> None:
        if plan.choice is None:
            _replace_start(tx, plan)
        elif plan.spec.waits:
            _with_waits(tx, plan)
        else:
            _without_waits(tx, plan)

    return editor.attempt(f"lower {name} to {plan.text}", rewrite)


def _arguments(plan: Lowered, payload: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the new start: its payload, and of the old one what it also takes."""
    start = plan.candidate.start
    known = ops.argument_names(start)
    args: list[Any] = [payload]
    for name in ops.arguments_after_payload(plan.spec):
        if name in known:
            args.append(ops.argument(start, name))
    return tuple(args), {}


def _replace_start(tx: Transaction, plan: Lowered) -> None:
    """Another operator with the same shape of result."""
    start, spec = plan.candidate.start, plan.candidate.block.collective.spec
    args, kwargs = _arguments(plan, ops.argument(start, spec.payload[0]))
    made = tx.call(plan.overload, args, kwargs, before=start, like=start, meta=carrying(start))
    _check_same(tx, plan, [(start, made)] if not spec.coalesced else [])
    for result in plan.candidate.block.collective.results:
        if result.value is not start:
            tx.replace_input(result.value, start, made)
    if any(result.value is start for result in plan.candidate.block.collective.results):
        tx.replace({start: made})
    tx.erase(start)


def _with_waits(tx: Transaction, plan: Lowered) -> None:
    """One start for each tensor, waited for where the old one was."""
    collective = plan.candidate.block.collective
    for given, result in zip(_inputs(plan), collective.results, strict=True):
        args, kwargs = _arguments(plan, given)
        made = tx.call(plan.overload, args, kwargs, before=plan.anchor, like=collective.start, meta=_meta(plan))
        _check_same(tx, plan, [(result.value, made)])
        tx.replace({result.value: made})
    _erase_start(tx, plan, waits=False)


def _without_waits(tx: Transaction, plan: Lowered) -> None:
    """One call for each tensor, complete when it returns; the waits go."""
    collective = plan.candidate.block.collective
    mapping: dict[Node, Node] = {}
    for given, result in zip(_inputs(plan), collective.results, strict=True):
        args, kwargs = _arguments(plan, given)
        made = tx.call(plan.overload, args, kwargs, before=plan.anchor, like=collective.start, meta=_meta(plan))
        (wait,) = result.waits
        _check_same(tx, plan, [(wait, made)])
        mapping[wait] = made
    tx.replace(mapping)
    _erase_start(tx, plan, waits=True)


def _inputs(plan: Lowered) -> tuple[Node, ...]:
    """What is sent, as the graph is now: where that was the result of another one, it may be another node."""
    collective = plan.candidate.block.collective
    return ops.tensors(collective.start, collective.spec.payload)


def _meta(plan: Lowered) -> dict[str, Any]:
    return carrying(plan.candidate.start)


def _erase_start(tx: Transaction, plan: Lowered, *, waits: bool) -> None:
    collective = plan.candidate.block.collective
    gone = {*(result.value for result in collective.results), collective.start}
    tx.erase([*gone, *(collective.waits if waits else ())])


def _check_same(tx: Transaction, plan: Lowered, pairs: Sequence[tuple[Node, Node]]) -> None:
    """The new result must stand in memory as the old one did: users may have been compiled for that."""
    for old, new in pairs:
        one, other = metadata.tensor_of(old), metadata.tensor_of(new)
        if (one.shape, one.dtype, one.stride()) != (other.shape, other.dtype, other.stride()):
            what = f"{tuple(one.shape)} by strides {one.stride()}, and {tuple(other.shape)} by {other.stride()}"
            tx.refuse(Refusal("layout", plan.candidate.start.name, what))
