"""Carrying out a plan: the members of each bucket give way to one collective.

All buckets are one transaction, which costs the least: users of many results, above all the output, are rewritten once,
and the graph is put in order once. Only if that is refused is each bucket tried by itself, so that one that cannot be
carried out does not keep the others from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from counterpoint.ir import ops
from counterpoint.ir.edit import EditRejected, GraphEditor, Transaction
from counterpoint.ir.ops import Form, Kind
from counterpoint.ir.reason import Refusal
from counterpoint.passes import bodies, packed_bodies
from counterpoint.passes.bucket_plan import Bucket, starts_of
from counterpoint.passes.cast_folding import Folded, fold_casts, unfolded
from counterpoint.passes.emitting import GraphEmit


class BucketMode(Enum):
    """How members share one collective."""

    FUNCTIONAL = "functional"
    """Packed side by side into one tensor, and taken apart behind it."""
    COALESCED = "coalesced"
    """Handed together to the coalesced operator, which packs nothing."""
    CUSTOM = "custom"
    """Packed side by side by an operator of ours, casts on the way: the fewest nodes for code generation."""


def merge(editor: GraphEditor, buckets: Sequence[Bucket], mode: BucketMode) -> list[Refusal | None]:
    """Carry out the buckets: for each None where it stands, or why it was taken back."""
    refusal = editor.attempt(f"merge {len(buckets)} buckets", lambda tx: merge_in(tx, buckets, mode))
    if refusal is None or len(buckets) < 2:
        return [refusal] * len(buckets)
    return [merge(editor, [bucket], mode)[0] for bucket in buckets]


def merge_in(tx: Transaction, buckets: Sequence[Bucket], mode: BucketMode) -> None:
    """Carry out all buckets inside a transaction."""
    results: dict[Node, Node] = {}
    gone: list[Node] = []
    for bucket in buckets:
        starts, waits = starts_of(bucket.members), [member.wait for member in bucket.members]
        folded = fold_casts(bucket) if mode is BucketMode.CUSTOM else unfolded(bucket)
        # Written where the first member stands; settling then moves it down just as far as its operands ask.
        launched = _launch(GraphEmit(tx, starts[0], starts), bucket, mode, folded)
        results |= zip(folded.results, launched.finish(GraphEmit(tx, min(waits), starts)), strict=True)
        gone += [*waits, *starts, *folded.gone]
    tx.replace(results)
    tx.erase(gone)
    tx.settle()


def _launch(emit: GraphEmit, bucket: Bucket, mode: BucketMode, folded: Folded) -> bodies.Launched:
    first, values, custom = bucket.members[0].start, folded.values, mode is BucketMode.CUSTOM
    group = ops.argument(first, "group_name")
    if mode is BucketMode.COALESCED:
        return _coalesced(emit, bucket, values)
    if bucket.key.kind is Kind.ALL_TO_ALL:
        exchange = packed_bodies.all_to_all if custom else bodies.all_to_all
        sends, receives = (_splits(bucket, f"{side}_split_sizes") for side in ("input", "output"))
        return exchange(emit, values, sends=sends, receives=receives, group=group)
    if bucket.key.kind is Kind.ALL_GATHER:
        return _gather(emit, bucket, folded, custom)
    pack = packed_bodies.packing_to(folded.before) if custom else bodies.concatenated
    reduce_op, after = ops.argument(first, "reduce_op"), partial(_cast, dtype=folded.after)
    if bucket.key.kind is Kind.ALL_REDUCE:
        return bodies.all_reduce(emit, values, reduce_op=reduce_op, group=group, pack=pack, after=after)
    ranks = ops.argument(first, "group_size")
    return bodies.reduce_scatter(emit, values, reduce_op=reduce_op, group=group, ranks=ranks, pack=pack, after=after)


def _gather(emit: GraphEmit, bucket: Bucket, folded: Folded, custom: bool) -> bodies.Launched:
    group, ranks = (ops.argument(bucket.members[0].start, name) for name in ("group_name", "group_size"))
    dtypes = [member.collective.sent.dtypes[0] for member in bucket.members]
    if custom:
        return packed_bodies.all_gather(
            emit, folded.values, dtypes=dtypes, group=group, ranks=ranks, dtype=folded.before
        )
    return bodies.all_gather(emit, folded.values, dtypes=dtypes, group=group, ranks=ranks)


def _cast(emit: bodies.Emit, value: bodies.Value, dtype: torch.dtype | None) -> bodies.Value:
    return value if dtype is None else bodies.cast(emit, value, dtype)


def _splits(bucket: Bucket, name: str) -> list[Any]:
    return [ops.argument(member.start, name) for member in bucket.members]


def _coalesced(emit: GraphEmit, bucket: Bucket, values: Sequence[Node]) -> bodies.Launched:
    """The coalesced operator takes the first member's arguments after the payload: members agree in all of them."""
    spec = bucket.members[0].collective.spec
    many = ops.form_of(spec, form=Form.FUNCTIONAL, coalesced=True)
    dtype = bucket.members[0].collective.sent.dtypes[0]
    # Gloo gathers complex numbers one by one only.
    if many is None or (spec.kind is Kind.ALL_GATHER and dtype.is_complex):
        what = f"{spec.name} of {dtype}"
        raise EditRejected(Refusal("no-coalesced-form", bucket.members[0].start.name, what), emit.tx.why)
    given = [ops.argument(bucket.members[0].start, name) for name in ops.arguments_after_payload(spec)]
    # The coalesced operators keep the strides of what they are given, where the single ones lay it out anew.
    return bodies.coalesced(emit, [emit.contiguous(value) for value in values], ops.overload_of(many), *given)
