"""Carrying out the fusion of gradient reductions: one bucket is one transaction."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from enum import Enum
from functools import partial

import torch
from torch.fx import Node

from counterpoint.ir import metadata, ops
from counterpoint.ir.edit import GraphEditor, Transaction
from counterpoint.ir.reason import Refusal
from counterpoint.passes import bodies, gradients, packed_bodies
from counterpoint.passes.bodies import Apply, Emit, Value
from counterpoint.passes.emitting import GraphEmit
from counterpoint.passes.gradients import Gradient, Step, common_steps

ATEN = torch.ops.aten
_FOREACH = {
    ATEN.div.Tensor: ATEN._foreach_div.Scalar,
    ATEN.div.Scalar: ATEN._foreach_div.Scalar,
    ATEN.mul.Tensor: ATEN._foreach_mul.Scalar,
    ATEN.mul.Scalar: ATEN._foreach_mul.Scalar,
}


class FusionMethod(Enum):
    """How gradients share one collective."""

    CONCAT = "concat"
    """Packed side by side into one tensor, by torch's own operators."""
    CUSTOM = "custom"
    """Packed likewise by an operator of ours: the fewest nodes for code generation."""
    COALESCED = "coalesced"
    """Handed together to the coalesced operator, which packs nothing."""


def fuse(
    editor: GraphEditor,
    buckets: Sequence[Sequence[Gradient]],
    method: FusionMethod,
    *,
    exact: bool = False,
    emitter: type[GraphEmit] = GraphEmit,
) -> dict[Node, Refusal]:
    """Give each bucket one reduction; for each start that could not be fused the reason.

    All buckets are one transaction, so that the users of many gradients are rewritten once. Where that is refused, each
    is tried by itself, and then its halves, so that one member in the way does not keep the others apart.

    exact: keep every bit of the scaling. A division by a number and the foreach operator may round differently on an
    accelerator, unless the number is a power of two. emitter: what writes the new operators.
    """
    plans = [_Fusion(bucket, method, exact, emitter) for bucket in buckets if len(bucket) > 1]
    refusal = editor.attempt(f"fuse {len(plans)} buckets of gradients", lambda tx: _apply_all(tx, plans))
    if refusal is None:
        return {}
    retry = partial(fuse, editor, method=method, exact=exact, emitter=emitter)
    parts = buckets if len(plans) > 1 else _halves(buckets)
    if not parts:
        return {gradient.start: refusal for bucket in buckets for gradient in bucket}
    return {start: why for part in parts for start, why in retry([part]).items()}


def _halves(buckets: Sequence[Sequence[Gradient]]) -> list[Sequence[Gradient]]:
    ((*members,),) = (bucket for bucket in buckets if len(bucket) > 1)
    middle = len(members) // 2
    return [members[:middle], members[middle:]] if middle > 1 else []


def _apply_all(tx: Transaction, fusions: Sequence[_Fusion]) -> None:
    replaced = {old: new for fusion in fusions for old, new in fusion.write(tx)}
    tx.replace(replaced)
    for fusion in fusions:
        fusion.clear(tx)
    tx.settle()


class _Fusion:
    """One bucket on its way."""

    def __init__(
        self, members: Sequence[Gradient], method: FusionMethod, exact: bool, emitter: type[GraphEmit]
    ) -> None:
        self.members, self.emitter = members, emitter
        self.coalesced = method is FusionMethod.COALESCED
        self.pack = packed_bodies.packing_to(None) if method is FusionMethod.CUSTOM else bodies.concatenated
        self.exact = exact
        self.starts = [gradient.start for gradient in members]
        self.waits = [gradient.member.wait for gradient in members]
        self.before = self._shared([gradient.before for gradient in members])
        self.after = self._shared([gradient.after for gradient in members])
        self.values = [gradient.value(self.before) for gradient in members]
        self.results = [gradient.result(self.after) for gradient in members]

    def write(self, tx: Transaction) -> list[tuple[Node, Node]]:
        """The new reduction beside the old ones: launched when the last gradient is there, waited for where the first
        wait stands. Pairs of an old result and the new one."""
        anchor = _behind(max(self.values))
        launched = self._launch(self.emitter(tx, anchor, self.starts), self.values)
        emit = self.emitter(tx, max(anchor, min(self.waits)), self.starts)
        return [(old, _shaped(emit, new, old)) for old, new in zip(self.results, launched.finish(emit), strict=True)]

    def clear(self, tx: Transaction) -> None:
        """Take out what served the old reductions alone: from the results back to the values that are packed now."""
        for node, value in zip(self.results, self.values, strict=True):
            while node is not value and not node.users:
                source = gradients.source_of(node)
                tx.erase(node)
                node = source

    def _shared(self, chains: Sequence[Sequence[Step]]) -> int:
        if not self.coalesced:
            return common_steps(chains)
        # Torch's foreach operators fix the symbols in the sizes of 16-bit tensors (2.11 to 2.15).
        if not all(gradients.is_constant(metadata.tensor_of(start).shape) for start in self.starts):
            return 0
        count = common_steps(chains, scales_only=True)
        return count if all(self._has_foreach(step) for step in chains[0][:count]) else 0

    def _has_foreach(self, step: Step) -> bool:
        power_of_two = step.by is not None and math.isfinite(step.by) and abs(math.frexp(step.by)[0]) == 0.5
        return step.dtypes[0].is_floating_point and (power_of_two or not self.exact)

    def _launch(self, emit: GraphEmit, values: Sequence[Node]) -> bodies.Launched:
        first = self.members[0]
        reduce_op, group = (ops.argument(first.start, name) for name in ("reduce_op", "group_name"))
        # Read from the gradient to the start, the steps before it come in the opposite order.
        before = _apply(tuple(reversed(first.before[: self.before])))
        after = _apply(first.after[: self.after])
        if not self.coalesced:
            return bodies.all_reduce(
                emit, values, reduce_op=reduce_op, group=group, pack=self.pack, before=before, after=after
            )
        # The coalesced operator keeps the strides of what it is given, where the single one lays it out anew.
        sent = [emit.contiguous(value) for value in before(emit, list(values))]
        return bodies.coalesced(emit, sent, bodies.C10D.all_reduce_coalesced.default, reduce_op, group, after=after)


def _apply(steps: Sequence[Step]) -> Apply:
    """The steps on another tensor, or on a list of tensors."""

    def apply(emit: Emit, value: Value) -> Value:
        for step in steps:
            if isinstance(value, list):
                made = emit(_FOREACH[step.node.target], value, step.by)  # type: ignore[index]
                value = [emit(operator.getitem, made, i) for i in range(len(value))]
            elif step.by is not None:
                value = emit(step.node.target, value, step.by)
            else:
                value = emit(ATEN._to_copy.default, value, dtype=step.dtypes[1])
        return value

    return apply


def _behind(node: Node) -> Node:
    """The first place for a call behind a node."""
    while (node := node.next).op == "placeholder":
        pass
    return node


def _shaped(emit: GraphEmit, made: Node, old: Node) -> Node:
    """The result in the shape of the one that it replaces, which views may have changed."""
    wanted, shape = metadata.tensor_of(old).shape, metadata.tensor_of(made).shape
    if not gradients.is_constant(wanted) or wanted == shape:
        return made
    return emit(ATEN.reshape.default, made, list(wanted))
