"""Shapes of products whose operands are gathered or scattered, and which part of a product belongs to which part of
an operand. Plain arithmetic on sizes, which may be symbolic.

Dims are counted from the end where operand and product are compared: dim -2 of the left operand is dim -2 of the
product, -1 of the right one is -1 of the product, leading dims are the same in all three, and what is left is summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterpoint.errors import OperatorError

Size = Any
"""An int, or a symbolic one while shapes are computed."""
Shape = Sequence[Size]

LEFT_SUMMED, RIGHT_SUMMED = -1, -2
"""The dim that a matmul sums over, in its left and in its right operand."""


def from_end(dim: int, dims: int) -> int:
    """A dim counted from the end, so that the last is -1."""
    if not -dims <= dim < dims:
        raise OperatorError(f"dim {dim} does not exist in a tensor of {dims} dims")
    return dim if dim < 0 else dim - dims


def is_summed(dim: int, left: bool) -> bool:
    """Whether a dim of the left or right operand, counted from the end, is the one that is summed over."""
    return dim == (LEFT_SUMMED if left else RIGHT_SUMMED)


def gathered_shape(shard: Shape, dim: int, ranks: int) -> list[Size]:
    """The shape of what is gathered."""
    shape = list(shard)
    dim = from_end(dim, len(shape))
    shape[dim] = shape[dim] * ranks
    return shape


def scattered_shape(whole: Shape, dim: int, ranks: int) -> list[Size]:
    """The shape of one rank's part."""
    shape = list(whole)
    dim = from_end(dim, len(shape))
    if isinstance(shape[dim], int) and shape[dim] % ranks:
        raise OperatorError(
            f"dim {dim} of {tuple(shape)} cannot be scattered over {ranks} ranks in equal parts",
            next_step="pad it to a multiple of the group's size",
        )
    shape[dim] = shape[dim] // ranks
    return shape


def product_shape(left: Shape, right: Shape) -> list[Size]:
    """The shape of `torch.matmul(left, right)`, for the operands that can be pipelined."""
    if len(left) < 2 or len(right) < 2 or (len(left) > 2 and len(right) > 2 and len(left) != len(right)):
        raise OperatorError(
            f"cannot pipeline the product of {tuple(left)} and {tuple(right)}",
            next_step="give both two dims or more, and both the same leading dims where both have any",
        )
    pairs: list[tuple[Size, Size]] = [(left[LEFT_SUMMED], right[RIGHT_SUMMED])]
    if len(left) == len(right):
        pairs += zip(left[:-2], right[:-2], strict=True)
    # Sizes that are not known yet are left to the kernels.
    if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
        raise OperatorError(f"the sizes of {tuple(left)} and {tuple(right)} do not fit for a product")
    leading = left[:-2] if len(left) > 2 else right[:-2]
    return [*leading, left[-2], right[-1]]


def check_lists(operator: str, count: int, **lists: Sequence[Any]) -> None:
    """Every list has an entry for each product."""
    for name, values in lists.items():
        if len(values) != count:
            raise OperatorError(
                f"{name} has {len(values)} entries for {count} products",
                where=f"counterpoint::{operator}",
                next_step="give one entry a product, None where there is none",
            )
