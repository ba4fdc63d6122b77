"""Carrying out a plan: the members of each bucket give way to one collective.

All buckets are one transaction, which costs the least: users of many results, above all the output, are rewritten once,
and the graph is put in order once. Only if that is refused is each bucket tried by itself, so that one that cannot be
carried out does not keep the others from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from torch.fx import Node

from counterpoint.ir import ops
from counterpoint.ir.edit import EditRejected, GraphEditor, Transaction
from counterpoint.ir.ops import Form, Kind
from counterpoint.ir.reason import Refusal
from counterpoint.passes import bodies
from counterpoint.passes.bucket_plan import Bucket, starts_of
from counterpoint.passes.emitting import GraphEmit


class BucketMode(Enum):
    """How members share one collective."""

    FUNCTIONAL = "functional"
    """Packed side by side into one tensor, and taken apart behind it."""
    COALESCED = "coalesced"
    """Handed together to the coalesced operator, which packs nothing."""


def merge(editor: GraphEditor, buckets: Sequence[Bucket], mode: BucketMode) -> list[Refusal | None]:
    """Carry out the buckets: for each None where it stands, or why it was taken back."""
    refusal = editor.attempt(f"merge {len(buckets)} buckets", lambda tx: _merge(tx, buckets, mode))
    if refusal is None or len(buckets) < 2:
        return [refusal] * len(buckets)
    return [merge(editor, [bucket], mode)[0] for bucket in buckets]


def _merge(tx: Transaction, buckets: Sequence[Bucket], mode: BucketMode) -> None:
    results: dict[Node, Node] = {}
    gone: list[Node] = []
    for bucket in buckets:
        starts, waits = starts_of(bucket.members), [member.wait for member in bucket.members]
        # Written where the first member stands; settling then moves it down just as far as its operands ask.
        launched = _launch(GraphEmit(tx, starts[0], starts), bucket, mode)
        results |= zip(waits, launched.finish(GraphEmit(tx, min(waits), starts)), strict=True)
        gone += [*waits, *starts]
    tx.replace(results)
    tx.erase(gone)
    tx.settle()


def _launch(emit: GraphEmit, bucket: Bucket, mode: BucketMode) -> bodies.Launched:
    first = bucket.members[0].start
    values = [member.collective.inputs[0] for member in bucket.members]
    group = ops.argument(first, "group_name")
    if mode is BucketMode.COALESCED:
        return _coalesced(emit, bucket, values)
    if bucket.key.kind is Kind.ALL_REDUCE:
        return bodies.all_reduce(emit, values, reduce_op=ops.argument(first, "reduce_op"), group=group)
    if bucket.key.kind is Kind.ALL_TO_ALL:
        sends, receives = (_splits(bucket, f"{side}_split_sizes") for side in ("input", "output"))
        return bodies.all_to_all(emit, values, sends=sends, receives=receives, group=group)
    ranks = ops.argument(first, "group_size")
    if bucket.key.kind is Kind.REDUCE_SCATTER:
        reduce_op = ops.argument(first, "reduce_op")
        return bodies.reduce_scatter(emit, values, reduce_op=reduce_op, group=group, ranks=ranks)
    dtypes = [member.collective.sent.dtypes[0] for member in bucket.members]
    return bodies.all_gather(emit, values, dtypes=dtypes, group=group, ranks=ranks)


def _splits(bucket: Bucket, name: str) -> list[Any]:
    return [ops.argument(member.start, name) for member in bucket.members]


def _coalesced(emit: GraphEmit, bucket: Bucket, values: Sequence[Node]) -> bodies.Launched:
    """The coalesced operator takes the first member's arguments after the payload: members agree in all of them."""
    spec = bucket.members[0].collective.spec
    many = ops.form_of(spec, form=Form.FUNCTIONAL, coalesced=True)
    if many is None:
        raise EditRejected(Refusal("no-coalesced-form", bucket.members[0].start.name, spec.name), emit.tx.why)
    given = [ops.argument(bucket.members[0].start, name) for name in ops.arguments_after_payload(spec)]
    return bodies.coalesced(emit, values, ops.overload_of(many), *given)
