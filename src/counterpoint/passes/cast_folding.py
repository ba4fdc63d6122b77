"""Casts that packing does on the way: before what a bucket sends, and behind what it gets back.

Packing copies every element anyway, so a member that is converted for nothing but its collective is packed as it was,
and converted by the copy. Behind a reduction, one cast of the whole bucket stands for the casts of its members.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Node

from counterpoint.ir import metadata, ops
from counterpoint.ir.ops import Kind
from counterpoint.passes.bucket_plan import Bucket

_BESIDE = ("layout", "device", "memory_format")
"""Arguments of a cast that must say nothing: packing converts elements, it does not move or reorder them."""


@dataclass(frozen=True)
class Folded:
    """What a bucket packs and what stands for its results."""

    values: tuple[Node, ...]
    """What is packed, one for each member."""
    results: tuple[Node, ...]
    """What the members' results replace: their waits, or the casts behind these."""
    gone: tuple[Node, ...] = ()
    """The casts that are not needed any more."""
    before: torch.dtype | None = None
    """What packing converts to; None when there is nothing to convert."""
    after: torch.dtype | None = None
    """What the result is converted to as a whole."""


def unfolded(bucket: Bucket) -> Folded:
    """The members as they are."""
    values = tuple(member.collective.inputs[0] for member in bucket.members)
    return Folded(values, tuple(member.wait for member in bucket.members))


def fold_casts(bucket: Bucket) -> Folded:
    """The members without the casts around them."""
    plain = unfolded(bucket)
    dtypes = {member.collective.sent.dtypes[0] for member in bucket.members}
    gone: list[Node] = []
    values, results = plain.values, plain.results
    before = after = None
    # A bucket of several element types travels as bytes, so there is no one type to convert to.
    if len(dtypes) == 1:
        casts = [list(_casts_before(member.start, value)) for member, value in zip(bucket.members, values, strict=True)]
        values = tuple(_source(cast[-1]) if cast else v for cast, v in zip(casts, values, strict=True))
        gone += [node for cast in casts for node in cast]
        before = dtypes.pop() if gone else None
    behind = _casts_behind(bucket) if bucket.key.kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER) else ()
    if behind:
        # The waits go with the members; the casts give way to the results.
        after, results = metadata.tensor_of(behind[0]).dtype, behind
        gone += behind
    return Folded(values, results, tuple(gone), before, after)


def _casts_before(start: Node, value: Node) -> Iterator[Node]:
    """The casts whose value serves nothing but the start; of several in a row only the last, the others may round."""
    if is_cast(value) and list(value.users) == [start]:
        yield value


def _casts_behind(bucket: Bucket) -> tuple[Node, ...]:
    """The cast behind every wait, when each result is only used converted, and all to one element type."""
    users = [list(member.wait.users) for member in bucket.members]
    casts = tuple(found[0] for found in users if len(found) == 1 and is_cast(found[0]))
    same = len({metadata.tensor_of(cast).dtype for cast in casts}) == 1
    return casts if same and len(casts) == len(users) else ()


def is_cast(node: Node) -> bool:
    """Whether the node changes the element type of a tensor and nothing else."""
    if node.op != "call_function" or not metadata.has_value(node):
        return False
    if node.target is torch.ops.aten._to_copy.default:
        only = all(ops.argument(node, name) is None for name in _BESIDE)
    elif node.target is torch.ops.prims.convert_element_type.default:
        only = True
    else:
        return False
    source = _source(node)
    # Copying a complex number into a real one warns, where the cast may have been silenced.
    return only and metadata.has_value(source) and not metadata.tensor_of(source).dtype.is_complex


def _source(cast: Node) -> Node:
    name = "self" if cast.target is torch.ops.aten._to_copy.default else "a"
    source: Node = ops.argument(cast, name)
    return source
