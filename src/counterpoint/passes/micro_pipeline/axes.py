"""What each dimension of a tensor is made of: the ground on which gathers, scatters and matmuls are recognised.

Between a collective and its matmul stand views that fold, unfold and turn dimensions. They are followed by writing
every dimension as a list of *axes*: the ranks of the group, and pieces of the dimensions of one rank's part.
With four ranks that hold `[b, s, h]` each:

    wait of the all-gather               [(ranks, b), (s), (h)]
    split along 0, cat along 1           [(b), (ranks, s), (h)]         a gather along dim 1
    reshape to [b * 4 * s, h]            [(b, ranks, s), (h)]           its rows are what the ranks held, side by side
    permuted                             [(h), (b, ranks, s)]

Sizes are never compared by adding guards. Axes of size one are left out, since they say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch.fx import Node

from counterpoint.ir import metadata, ops
from counterpoint.ir.verify.sizes import Size, UndecidedError, divide, exact, tidy

ATEN = torch.ops.aten
RANKS = -1


class Axis(NamedTuple):
    """A piece of one dimension of a rank's part."""

    dim: int
    """The dimension, or `RANKS`."""
    size: Size
    inner: Size = 1
    """How many elements of the dimension one step along this axis passes."""

    @property
    def is_ranks(self) -> bool:
        """Whether the axis runs over the ranks of the group."""
        return self.dim == RANKS


Group = tuple[Axis, ...]
"""The axes of one dimension, the outermost first."""
Axes = tuple[Group, ...]


def whole(shape: Sequence[Size]) -> Axes:
    """A tensor that is nothing but itself."""
    return tuple(() if size == 1 else (Axis(dim, size),) for dim, size in enumerate(shape))


def side_by_side(shape: Sequence[Size], ranks: int) -> Axes:
    """The parts of all ranks, one after another along dim 0."""
    first, *others = whole(shape)
    return ((Axis(RANKS, ranks), *first), *others)


def ranks_dim(axes: Axes) -> int:
    """The dimension that the ranks' axis is a piece of."""
    return next(dim for dim, group in enumerate(axes) if any(axis.is_ranks for axis in group))


def flattened(axes: Iterable[Group]) -> Group:
    """The axes in the order in which elements stand."""
    return tuple(axis for group in axes for axis in group)


def regrouped(axes: Axes, shape: Sequence[Size]) -> Axes | None:
    """The same elements in the same order, in dimensions of other sizes. None where an axis would be torn apart."""
    queue = list(reversed(flattened(axes)))
    try:
        groups = tuple(_take(queue, size) for size in shape)
    except (UndecidedError, IndexError):
        return None
    return None if queue else groups


def _take(queue: list[Axis], size: Size) -> Group:
    """Axes of this many elements from the end of the queue; one that is too long is cut in two."""
    taken: list[Axis] = []
    while size != 1:
        axis = queue.pop()
        if axis.size != size and not _divides(axis.size, size):
            if axis.is_ranks:
                raise UndecidedError
            rest = divide(axis.size, size)
            queue.append(Axis(axis.dim, rest, axis.inner))
            axis = Axis(axis.dim, size, tidy(axis.inner * rest))
        taken.append(axis)
        size = divide(size, axis.size)
    return tuple(taken)


def _divides(part: Size, total: Size) -> bool:
    try:
        divide(total, part)
    except UndecidedError:
        return False
    return True


def moved_ranks(axes: Axes, dim: int) -> Axes | None:
    """The axes after `cat(split(x, dim=0), dim)`: the ranks go from the front of dim 0 to the front of another one."""
    if not axes[0] or not axes[0][0].is_ranks:
        return None
    ranks, *rest = axes[0]
    without = [tuple(rest), *axes[1:]]
    without[dim] = (ranks, *without[dim])
    return tuple(without)


# -- views ------------------------------------------------------------------------------------------------------------


def after(view: Node, axes: Axes) -> Axes | None:
    """The axes of a view, given those of what it looks at; None where it is no such view."""
    order = _ORDERS.get(view.target)
    if order is not None:
        return tuple(axes[dim] for dim in order(view, len(axes)))
    if view.target in _FOLDS:
        return regrouped(axes, shape_of(view))
    return axes if view.target in _SAME else None


def before(view: Node, axes: Axes) -> Axes | None:
    """The axes of what a view looks at, given those of the view."""
    order = _ORDERS.get(view.target)
    if order is not None:
        placed = dict(zip(order(view, len(axes)), axes, strict=True))
        return tuple(placed[dim] for dim in range(len(axes)))
    if view.target in _FOLDS:
        return regrouped(axes, shape_of(source_of(view)))
    return axes if view.target in _SAME else None


def is_view(node: Node) -> bool:
    """Whether `after` and `before` know the node."""
    return node.op == "call_function" and (node.target in _FOLDS or node.target in _ORDERS or node.target in _SAME)


def is_fold(node: Node) -> bool:
    """Whether the node keeps the order of elements and gives them other dimensions."""
    return node.op == "call_function" and node.target in _FOLDS


def source_of(view: Node) -> Node:
    """What a view looks at."""
    return view.all_input_nodes[0]


def shape_of(node: Node) -> tuple[Size, ...]:
    """The sizes of a node's tensor."""
    shape = metadata.tensor_of(node).shape
    return tuple([size if isinstance(size, int) else exact(size) for size in shape])


def _permuted(view: Node, dims: int) -> list[int]:
    return [dim % dims for dim in ops.argument(view, "dims")]


def _transposed(view: Node, dims: int) -> list[int]:
    order = list(range(dims))
    one, other = (ops.argument(view, name) % dims for name in ("dim0", "dim1"))
    order[one], order[other] = order[other], order[one]
    return order


def _turned(view: Node, dims: int) -> list[int]:
    return list(reversed(range(dims)))


_ORDERS: dict[object, Callable[[Node, int], list[int]]] = {
    ATEN.permute.default: _permuted,
    ATEN.transpose.int: _transposed,
    ATEN.t.default: _turned,
}
"""Which dimension of its input stands at each place of a view that turns dimensions."""

_FOLDS: frozenset[object] = frozenset(
    {
        ATEN.reshape.default,
        ATEN.view.default,
        ATEN._unsafe_view.default,
        ATEN.flatten.using_ints,
        ATEN.unflatten.int,
        ATEN.squeeze.default,
        ATEN.squeeze.dim,
        ATEN.squeeze.dims,
        ATEN.unsqueeze.default,
    }
)
"""Views that keep the order of elements; sizes are read from what they return."""

_SAME: frozenset[object] = frozenset(
    {ATEN.alias.default, ATEN.detach.default, ATEN.clone.default, ATEN.contiguous.default}
)
"""Operators whose result holds the same elements in the same dimensions, copied or not."""
