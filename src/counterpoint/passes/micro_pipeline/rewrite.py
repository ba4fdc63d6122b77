"""Carrying out a plan: each collective and its matmuls give way to one pipelined operator.

All rewrites are one transaction, which costs the least. If that is refused, halves are tried, and so on, so that one
rewrite that cannot stand does not keep the others from it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from counterpoint.ir.edit import GraphEditor, Transaction
from counterpoint.ir.reason import Refusal
from counterpoint.ir.verify.pipelined import DONE_BEFORE, TURNED
from counterpoint.passes.emitting import GraphEmit
from counterpoint.passes.micro_pipeline.axes import RANKS, Axes, Axis, flattened, shape_of, whole
from counterpoint.passes.micro_pipeline.exchanges import ExchangePlan, write_exchange
from counterpoint.passes.micro_pipeline.forms import Form, in_place
from counterpoint.passes.micro_pipeline.gather_uses import Use
from counterpoint.passes.micro_pipeline.gathers import Gather, is_returned
from counterpoint.passes.micro_pipeline.layout import check_layout, refined, shaped, turned
from counterpoint.passes.micro_pipeline.operators import gather_products, reduce_products, scatter_products
from counterpoint.passes.micro_pipeline.outcome import Outcome, is_needed, product_results
from counterpoint.passes.micro_pipeline.products import Product
from counterpoint.passes.micro_pipeline.scatters import Scatter

ATEN = torch.ops.aten


@dataclass(frozen=True, eq=False)
class GatherPlan:
    """A gather and the matmuls that are computed while it arrives."""

    gather: Gather
    uses: tuple[Use, ...]
    chunks: int

    @property
    def starts(self) -> tuple[Node, ...]:
        """The collectives whose work the operator does."""
        scale = self.uses[0].scale
        return (self.gather.start,) if scale is None else (self.gather.start, scale.gather.start)


@dataclass(frozen=True, eq=False)
class ScatterPlan:
    """A reduction and the matmuls whose parts are sent while others are computed."""

    scatter: Scatter
    chunks: int

    @property
    def starts(self) -> tuple[Node, ...]:
        """The collective whose work the operator does."""
        return (self.scatter.start,)


Plan = GatherPlan | ScatterPlan | ExchangePlan


Write = Callable[[Transaction, Plan, Outcome], Node]


def write(tx: Transaction, plan: Plan, outcome: Outcome) -> Node:
    """Add the operator of a plan; returns it."""
    if isinstance(plan, GatherPlan):
        return _write_gather(tx, plan, outcome)
    if isinstance(plan, ExchangePlan):
        return write_exchange(tx, plan, outcome)
    return _write_scatter(tx, plan, outcome)


def carry_out(editor: GraphEditor, plans: Sequence[Plan], writing: Write = write) -> list[Refusal | None]:
    """Carry out the plans: for each None where it stands, or why it was taken back."""
    if not plans:
        return []
    refusal = editor.attempt(f"pipeline {len(plans)} collectives", lambda tx: _rewrite(tx, plans, writing))
    if refusal is None or len(plans) == 1:
        return [refusal] * len(plans)
    half = len(plans) // 2
    return [*carry_out(editor, plans[:half], writing), *carry_out(editor, plans[half:], writing)]


def _rewrite(tx: Transaction, plans: Sequence[Plan], writing: Write) -> None:
    outcome = Outcome()
    for plan in plans:
        writing(tx, plan, outcome)
    tx.replace(outcome.results)
    _join_new(tx, outcome)
    unused = dict.fromkeys(outcome.gone)
    for node in sorted(unused, reverse=True):
        if not node.users:
            tx.erase(node)
    tx.settle()


def _join_new(tx: Transaction, outcome: Outcome) -> None:
    """Let new nodes use each other where they were written with old ones as operands."""
    for new in dict.fromkeys(outcome.results.values()):
        if any(source in outcome.results for source in new.all_input_nodes):
            args, kwargs = map_arg((new.args, new.kwargs), lambda node: outcome.results.get(node, node))
            tx.set_arguments(new, args, kwargs)


# -- gathers ----------------------------------------------------------------------------------------------------------


def _write_gather(tx: Transaction, plan: GatherPlan, outcome: Outcome) -> Node:
    gather, form = plan.gather, plan.uses[0].form
    matmuls = [use.product.node for use in plan.uses]
    emit = GraphEmit(tx, min(matmuls), plan.starts)
    shard = hoisted(emit, gather, laid_out(emit, gather.shard, form))
    scale = plan.uses[0].scale
    row_scale = None
    if scale is not None:
        row_scale = hoisted(emit, scale.gather, laid_out(emit, scale.gather.shard, scale.form))
    kept = is_returned(gather.start) or is_needed(gather.result, frozenset(matmuls))
    call = gather_products(emit, plan, shard, row_scale, kept)
    for index, use in enumerate(plan.uses):
        outcome.results |= product_results(emit, use.product.node, emit(operator.getitem, call, index))
    if kept:
        gathered = emit(operator.getitem, call, len(plan.uses))
        outcome.keep(gather.start, gather.result, restored(emit, gathered, gather, form))
    outcome.gone += [*matmuls, *(node for use in plan.uses for node in use.via), *gather.nodes]
    outcome.gone += [user for node in matmuls for user in node.users if user in outcome.results]
    if scale is not None:
        outcome.gone += [*scale.gather.nodes, *_views_between(scale.gather.result, plan.uses[0].product)]
    return call


def hoisted(emit: GraphEmit, gather: Gather, shard: Node) -> Node:
    """The shard after the elementwise operators that were behind the gather."""
    for node in gather.hoisted:
        args, kwargs = map_arg((node.args, node.kwargs), partial(_instead, shard))
        shard = _marked(emit, emit(node.target, *args, **kwargs))
    return shard


def _instead(value: Node, _: Node) -> Node:
    return value


def laid_out(emit: GraphEmit, shard: Node, form: Form) -> Node:
    """The shard in a form."""
    if shape_of(shard) == form.sizes() and in_order(form):
        return shard
    value = turned(emit, shard, in_place_of(form), form.dims)
    return value if in_order(form) else _marked(emit, value)


def _marked(emit: GraphEmit, node: Node) -> Node:
    """The node, said to have been behind the gather before: the verifier then reads it there."""
    emit.tx.annotate(node, **{DONE_BEFORE: True})
    return node


def in_place_of(form: Form) -> Axes:
    """The axes of a form as they stand in the shard."""
    return in_place(form.dims)


def in_order(form: Form) -> bool:
    """Whether the form keeps the order of the shard's elements."""
    return flattened(in_place_of(form)) == flattened(form.dims)


def restored(emit: GraphEmit, gathered: Node, gather: Gather, form: Form) -> Node:
    """The gathered tensor of an operator in the dimensions of the one that it stands for."""
    ranks = Axis(RANKS, gather.ranks)
    have = tuple((ranks, *group) if dim == form.along else group for dim, group in enumerate(form.dims))
    want = refined(gather.axes, flattened(form.dims))
    return check_layout(emit, turned(emit, gathered, have, want, packed=True), gather.result)


def _views_between(result: Node, product: Product) -> Iterable[Node]:
    node = product.scales.left if product.scales is not None else result
    while node is not result:
        yield node
        node = node.all_input_nodes[0]


# -- scatters ---------------------------------------------------------------------------------------------------------


def _write_scatter(tx: Transaction, plan: ScatterPlan, outcome: Outcome) -> Node:
    scatter = plan.scatter
    emit = GraphEmit(tx, scatter.start, plan.starts)
    lefts = [left_of(emit, scatter, product) for product in scatter.products]
    call = (reduce_products if scatter.ranks is None else scatter_products)(emit, plan, lefts)
    if scatter.turned:
        tx.annotate(call, **{TURNED: True})
    outcome.keep(scatter.start, scatter.wait, scattered(emit, call, scatter))
    outcome.gone += [*scatter.nodes, *(product.node for product in scatter.products)]
    return call


def left_of(emit: GraphEmit, scatter: Scatter, product: Product) -> Node:
    """A left operand, its rows in the dimensions of which one is scattered."""
    form = scatter.form
    left = emit(ATEN.permute.default, product.left, [1, 0]) if product.left_turned else product.left
    if form is None:
        return left
    last = len(form.dims) - 1
    rows = form.sizes(scatter.ranks or 1 if form.along != last else 1)[:-1]
    return shaped(emit, left, (*rows, shape_of(left)[-1]))


def scattered(emit: GraphEmit, part: Node, scatter: Scatter) -> Node:
    """A rank's part of the products in the dimensions of the collective's result."""
    rows = scatter.axes[:-1] if scatter.form is None else scatter.form.dims[:-1]
    have = (*rows, scatter.columns)
    want = refined(whole(shape_of(scatter.wait)), flattened(have))
    return check_layout(emit, turned(emit, part, have, want, packed=True), scatter.wait)
