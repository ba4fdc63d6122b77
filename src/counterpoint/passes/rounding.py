"""Where merging may change a rounding: the rule behind the option `bitwise`."""

from __future__ import annotations

from counterpoint.ir.reason import Refusal
from counterpoint.passes.base import PassContext
from counterpoint.passes.bucket_plan import Bucket

_ORDER_FREE = frozenset({"max", "min", "band", "bor", "bxor"})
"""Reductions whose result does not depend on the order of the ranks."""


def refuse_rounding(context: PassContext, bucket: Bucket) -> Refusal | None:
    """Packing changes where an element stands, and with that the order in which backends add the ranks' values."""
    reduce_op, first = bucket.key.reduce_op, bucket.members[0]
    if not context.options.bitwise or reduce_op is None or reduce_op in _ORDER_FREE:
        return None
    dtypes = {dtype for member in bucket.members for dtype in member.collective.sent.dtypes}
    if all(not dtype.is_floating_point and not dtype.is_complex for dtype in dtypes):
        return None
    ranks = context.groups.get(str(bucket.key.group), ())
    # Two values have only one order of addition.
    return None if len(ranks) == 2 else Refusal("rounding", first.start.name, f"{reduce_op} of {len(ranks)} ranks")
