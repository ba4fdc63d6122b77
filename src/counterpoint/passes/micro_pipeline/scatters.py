"""Reduce-scatters and all-reduces as matmuls see them: the sum of products that goes in, and how it stands there.

    wait(reduce_scatter(p))                          along dim 0
    wait(reduce_scatter(cat(split(p, p_d / n, d))))  along dim d; slices as well
    wait(all_reduce(p))

`p` is a product, or a sum of products, seen through views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.fx import Node

from counterpoint.ir import metadata, ops
from counterpoint.ir.ops import Kind
from counterpoint.ir.reason import Refusal
from counterpoint.passes.cast_folding import is_cast
from counterpoint.passes.micro_pipeline.axes import (
    Axes,
    Group,
    before,
    flattened,
    is_view,
    shape_of,
    side_by_side,
    source_of,
    whole,
)
from counterpoint.passes.micro_pipeline.forms import Form, form_of, stands
from counterpoint.passes.micro_pipeline.gathers import refuse_form, wait_of
from counterpoint.passes.micro_pipeline.pieces import is_join, pieces_of
from counterpoint.passes.micro_pipeline.products import Product, is_matmul, read_product

ATEN = torch.ops.aten
REDUCTIONS = ("sum", "avg")


@dataclass(frozen=True)
class Scatter:
    """A reduction of a sum of products."""

    start: Node
    wait: Node
    group: str
    reduce_op: str
    ranks: int | None
    """How many parts the result is cut into; None where every rank keeps all of it."""
    products: tuple[Product, ...]
    form: Form | None
    """How the left operands are laid out for a reduce-scatter; None where they are taken as they are."""
    columns: Group
    """The axes of the products' last dimension, in a rank's part."""
    axes: Axes
    """Of the products, in terms of a rank's result."""
    turned: bool
    """The products have rows for columns, as what is sent does."""
    out_dtype: torch.dtype | None
    """What the products are converted to before they are sent."""
    nodes: tuple[Node, ...]
    """Everything from the products to the wait."""


@dataclass(frozen=True)
class _Walked:
    """A value on the way up from the collective, and its axes."""

    value: Node
    axes: Axes
    nodes: tuple[Node, ...]
    cast: Node | None = None


def read_scatter(start: Node) -> Scatter | Refusal:
    """The reduction that a start begins, or why matmuls cannot run into it."""
    spec = ops.spec_of(start.target)
    kind = spec.kind if spec is not None else Kind.WAIT
    refusal = refuse_form(start, kind)
    if refusal is not None:
        return refusal
    reduce_op = ops.reduce_op_of(start) or "sum"
    if reduce_op not in REDUCTIONS:
        return Refusal("pipeline-reduction", start.name, reduce_op)
    wait = wait_of(start)
    sent: Node = ops.argument(start, "input")
    shape = shape_of(wait)
    if not shape or 0 in shape:
        return Refusal("scatter-form", start.name, f"shape {list(shape)}")
    ranks = ops.argument(start, "group_size") if kind is Kind.REDUCE_SCATTER else None
    walked = _up(_Walked(sent, whole(shape) if ranks is None else side_by_side(shape, ranks), ()), start)
    if isinstance(walked, Refusal):
        return walked
    sums = _terms(walked)
    if isinstance(sums, Refusal):
        return sums
    summed = walked.axes if len(sums) > 1 else None
    return _read_products(start, wait, reduce_op, ranks, sums, summed)


class Sent(NamedTuple):
    """What a reduce-scatter is about, before it is brought into the order in which it is sent."""

    source: Node
    dim: int
    nodes: tuple[Node, ...]
    """What brings the source into order."""


def read_sent(start: Node) -> Sent | Refusal:
    """What a reduce-scatter reduces and along which dimension it scatters, whatever computes it."""
    refusal = refuse_form(start, Kind.REDUCE_SCATTER)
    if refusal is not None:
        return refusal
    sent: Node = ops.argument(start, "input")
    if not is_join(sent):
        return Sent(sent, 0, ())
    pieces = pieces_of(sent)
    if isinstance(pieces, str):
        return Refusal("pieces", sent.name, pieces)
    if pieces.joined_dim != 0 or pieces.through_bytes or pieces.number != ops.argument(start, "group_size"):
        return Refusal("pieces", sent.name, f"{pieces.number} joined along dim {pieces.joined_dim}")
    return Sent(pieces.source, pieces.cut_dim, pieces.nodes)


# -- up to the products -----------------------------------------------------------------------------------------------


def _up(at: _Walked, user: Node) -> _Walked | Refusal:
    """From what is sent up to the sum or product that it comes from."""
    while True:
        node = at.value
        # What a view or a product is used for beside the reduction would have to be computed all the same.
        beside = _beside(node, user, at)
        if beside:
            return Refusal("product-used", node.name, ", ".join(beside))
        if is_matmul(node) or node.target is ATEN.add.Tensor:
            return at
        moved = _step(at)
        if isinstance(moved, Refusal):
            return moved
        user, at = node, moved


def _beside(node: Node, user: Node, at: _Walked) -> list[str]:
    """What uses the node beside those nodes that lead to the collective."""
    if len(node.users) == 1:
        return []
    known = {user, *at.nodes}
    return [other.name for other in node.users if other not in known]


def _step(at: _Walked) -> _Walked | Refusal:
    node = at.value
    if is_join(node):
        return _apart(at)
    if is_cast(node) and at.cast is None:
        return _Walked(node.all_input_nodes[0], at.axes, (*at.nodes, node), node)
    axes = before(node, at.axes) if is_view(node) else None
    if axes is None:
        return Refusal("no-product", node.name, f"{node.op} {node.target}")
    return _Walked(source_of(node), axes, (*at.nodes, node), at.cast)


def _apart(at: _Walked) -> _Walked | Refusal:
    """`cat(split(p, dim))` puts the parts for all ranks one after another; in `p` they stand along the dim."""
    pieces = pieces_of(at.value)
    if isinstance(pieces, str):
        return Refusal("pieces", at.value.name, pieces)
    first = at.axes[0]
    if pieces.joined_dim != 0 or pieces.through_bytes or not first or not first[0].is_ranks:
        return Refusal("pieces", at.value.name, f"joined along dim {pieces.joined_dim}")
    if pieces.number != first[0].size:
        return Refusal("pieces", at.value.name, f"{pieces.number} pieces for {first[0].size} ranks")
    groups = [first[1:], *at.axes[1:]]
    groups[pieces.cut_dim] = (first[0], *groups[pieces.cut_dim])
    return _Walked(pieces.source, tuple(groups), (*at.nodes, *pieces.nodes), at.cast)


def _terms(at: _Walked) -> list[_Walked] | Refusal:
    """The products of a sum, in the order in which they are added."""
    node = at.value
    if is_matmul(node):
        return [at]
    one, other = ops.argument(node, "self"), ops.argument(node, "other")
    forms = [_shape_and_type(term) for term in (one, other, node) if isinstance(term, Node)]
    if len(forms) != 3 or len(set(forms)) != 1 or ops.argument(node, "alpha") != 1:
        return Refusal("no-product", node.name, "it adds something else than two tensors of one shape and type")
    if at.cast is not None:
        return Refusal("no-product", at.cast.name, "it converts a sum")
    found: list[_Walked] = []
    for term in (one, other):
        walked = _up(_Walked(term, at.axes, (node,) if term is one else ()), node)
        below = _terms(walked) if isinstance(walked, _Walked) else walked
        if isinstance(below, Refusal):
            return below
        if any(term.cast is not None for term in below):
            return Refusal("no-product", node.name, "it adds converted products")
        found += below
    return [_Walked(w.value, w.axes, (*at.nodes, *w.nodes)) if i == 0 else w for i, w in enumerate(found)]


def _shape_and_type(node: Node) -> tuple[object, ...]:
    return (shape_of(node), metadata.tensor_of(node).dtype)


# -- the products -----------------------------------------------------------------------------------------------------


def _read_products(
    start: Node, wait: Node, reduce_op: str, ranks: int | None, sums: Sequence[_Walked], summed: Axes | None
) -> Scatter | Refusal:
    products: list[Product] = []
    for term in sums:
        product = read_product(term.value)
        if isinstance(product, Refusal):
            return product
        products.append(product)
    first = sums[0]
    unlike = next((term for term in sums if term.axes != first.axes), None)
    if unlike is not None:
        return Refusal("unlike-products", unlike.value.name, f"stands otherwise than {first.value.name}")
    refusal = _refuse_together(products)
    if refusal is not None:
        return refusal
    laid = _laid(products, first.axes, ranks, summed)
    if isinstance(laid, Refusal):
        laid = _laid_turned(products, first.axes, ranks, summed) or laid
    if isinstance(laid, Refusal):
        return laid
    return Scatter(
        start=start,
        wait=wait,
        group=ops.argument(start, "group_name"),
        reduce_op=reduce_op,
        ranks=ranks,
        products=laid.products,
        form=laid.form,
        columns=laid.columns,
        axes=laid.axes,
        turned=laid.turned,
        out_dtype=metadata.tensor_of(first.cast).dtype if first.cast is not None else products[0].out_dtype,
        nodes=(start, wait, *dict.fromkeys(node for term in sums for node in term.nodes)),
    )


class _Laid(NamedTuple):
    """Products, and how they stand in what is sent."""

    products: tuple[Product, ...]
    axes: Axes
    form: Form | None
    columns: Group
    turned: bool = False


def _laid(products: Sequence[Product], axes: Axes, ranks: int | None, summed: Axes | None) -> _Laid | Refusal:
    form, name = None, products[0].node.name
    if summed is not None:
        form = _summed_form(summed, axes)
    elif ranks is not None:
        form = _left_form(axes, products[0])
    if form is None and (ranks is not None or summed is not None):
        return Refusal("scattered-product", name, "the parts for the ranks are interleaved in it")
    rows = axes[:-1] if form is None else form.dims[:-1]
    columns = tuple(axis for axis in axes[-1] if not axis.is_ranks)
    if not stands((*rows, columns)):
        return Refusal("scattered-product", name, "its dimensions are turned before they are sent")
    return _Laid(tuple(products), axes, form, columns)


def _laid_turned(products: Sequence[Product], axes: Axes, ranks: int | None, summed: Axes | None) -> _Laid | None:
    """The same for products that are turned before they are sent, as gradients of weights are; sums as a whole."""
    turned = [product.turned() for product in products]
    if None in turned or summed not in (None, axes):
        return None
    around: Axes = tuple(reversed(axes))
    laid = _laid([p for p in turned if p is not None], around, ranks, None if summed is None else around)
    if isinstance(laid, Refusal) or (laid.form is not None and len(laid.form.dims) != 2):
        return None
    return laid._replace(turned=True)


def _refuse_together(products: Sequence[Product]) -> Refusal | None:
    """Why these products cannot be added up by one operator."""
    kinds = {(p.node.target, p.out_dtype, metadata.tensor_of(p.left).dtype, p.scales is not None) for p in products}
    if len(kinds) != 1:
        return Refusal("unlike-products", products[-1].node.name, f"of another kind than {products[0].node.name}")
    biases = [p.bias for p in products if p.bias is not None]
    if len(biases) > 1:
        return Refusal("unlike-products", products[-1].node.name, "several products have a bias")
    if products[0].scales is not None and len(products) > 1:
        return Refusal("unlike-products", products[-1].node.name, "scaled products are not added up")
    return None


def _summed_form(summed: Axes, axes: Axes) -> Form | None:
    """The form of left operands whose products have the dimensions in which they are added up."""
    if flattened(summed[:-1]) != flattened(axes[:-1]) or summed[-1] != axes[-1]:
        return None
    along = next((dim for dim, group in enumerate(summed) if any(axis.is_ranks for axis in group)), 0)
    if any(axis.is_ranks for group in summed for axis in group[1:]):
        return None
    dims = tuple(tuple(axis for axis in group if not axis.is_ranks) for group in summed[:-1])
    return Form((*dims, ()), along)


def _left_form(axes: Axes, product: Product) -> Form | None:
    """How left operands must be laid out for the parts of the ranks to stand along one dimension of the product."""
    columns = axes[-1]
    if any(axis.is_ranks for axis in columns):
        if not columns[0].is_ranks:
            return None
        rows = axes[:-1] if product.batched else tuple((axis,) for axis in flattened(axes[:-1]))
        return Form((*rows, ()), len(rows))
    # The contracted dimension takes the place of the columns; it has no axis of the result.
    return form_of((*axes[:-1], ()), left=True, batched=product.batched)
