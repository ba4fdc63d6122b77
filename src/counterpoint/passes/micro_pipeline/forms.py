"""How an operand must be laid out for a pipelined operator, worked out from its axes.

A pipelined operator takes tensors whose last two dimensions are matrices, and gathers or scatters along one dimension.
The rows of an operand may be many dimensions, which are multiplied side by side; what is contracted is one.
"""

from __future__ import annotations

from typing import NamedTuple

from counterpoint.ir.verify.sizes import Size, product
from counterpoint.passes.micro_pipeline.axes import Axes, Group, flattened, ranks_dim


class Form(NamedTuple):
    """An operand's dimensions, each by its axes, without the ranks' axis, and where that belongs."""

    dims: tuple[Group, ...]
    along: int
    """The dimension in which the parts of the ranks stand side by side."""
    left: bool = True
    """Whether it is the left operand."""
    contracts: bool = False
    """The dimension is summed over, so every part gives a product of full size."""

    def sizes(self, ranks: int = 1) -> tuple[Size, ...]:
        """The sizes of these dimensions, of one rank's part or of all ranks'."""
        sizes = [product(axis.size for axis in group) for group in self.dims]
        sizes[self.along] = product((sizes[self.along], ranks))
        return tuple(sizes)


def form_of(axes: Axes, *, left: bool, batched: bool) -> Form | None:
    """The form in which an operand with these axes can be handed to a pipelined operator; None where it cannot.

    The last dimension but one holds the rows and the last the columns of a matrix; before them stand batches.
    """
    if batched:
        return _matrices(axes, left, contracted=2 if left else 1)
    if not left:
        return _matrices(axes, left, contracted=0) if len(axes) == 2 else None
    rows, columns = flattened(axes[:-1]), axes[-1]
    if any(axis.is_ranks for axis in columns):
        rest = _without_ranks(columns)
        return None if rest is None else Form((*((axis,) for axis in rows), rest), len(rows), True, True)
    dims, along = _one_by_one(rows)
    return Form((*dims, columns), along)


def _matrices(axes: Axes, left: bool, contracted: int) -> Form | None:
    """Every dimension stays as it is; the ranks must stand at the front of theirs."""
    along = ranks_dim(axes)
    rest = _without_ranks(axes[along])
    if rest is None:
        return None
    dims = tuple(rest if dim == along else group for dim, group in enumerate(axes))
    return Form(dims, along, left, along == contracted)


def _without_ranks(group: Group) -> Group | None:
    return group[1:] if group[0].is_ranks else None


def _one_by_one(rows: Group) -> tuple[tuple[Group, ...], int]:
    """Rows as dimensions of their own: the ranks' parts stand side by side in that of the axis behind them."""
    along = next(place for place, axis in enumerate(rows) if axis.is_ranks)
    before, behind = rows[:along], rows[along + 1 :]
    # Where nothing stands behind the ranks, each of them holds one row.
    dims = (*((axis,) for axis in before), *(((axis,) for axis in behind) if behind else ((),)))
    return dims, along


def plain_form(form: Form, shape: tuple[Size, ...]) -> Form | None:
    """The form that takes a part of this shape as it is, where that means the same; it spares the views."""
    if len(form.dims) == len(shape) and form.sizes() == shape and stands(form.dims):
        return form
    axes = flattened(form.dims)
    if not stands((axes,)) or not form.left or form.contracts or len(shape) < 2:
        return None
    last = len(shape) - 1
    if any(axis.dim == last for axis in flattened(form.dims[:-1])) or any(axis.dim != last for axis in form.dims[-1]):
        return None
    group = form.dims[form.along]
    if not group or product((group[0].size, group[0].inner)) != shape[group[0].dim]:
        return None
    dims = tuple(tuple(axis for axis in axes if axis.dim == dim) for dim in range(len(shape)))
    return Form(dims, group[0].dim)


def in_place(dims: Axes) -> Axes:
    """The axes in the order in which a part's elements stand, each as a dimension of its own."""
    # Of a dimension that is cut, both pieces have numbers for sizes; a symbolic one is never cut.
    axes = sorted(flattened(dims), key=lambda axis: (axis.dim, -axis.inner if isinstance(axis.inner, int) else 0))
    return tuple((axis,) for axis in axes)


def stands(dims: Axes) -> bool:
    """Whether the axes stand in the order in which the elements of a part do."""
    return flattened(in_place(dims)) == flattened(dims)
