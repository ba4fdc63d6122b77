"""All-to-alls of equal parts along dim 0, and the matmuls before or behind them.

    mm(view(wait(all_to_all(x))), w)        what has come is multiplied while the rest is on its way
    wait(all_to_all(view(mm(y, w))))        what is computed is sent while the rest is computed

Rows are exchanged as they are, so every matmul of which they are the left operand can be cut.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

from torch.fx import Node

from counterpoint.ir import metadata, ops
from counterpoint.ir.edit import Transaction
from counterpoint.ir.ops import Kind
from counterpoint.ir.pipelined import OPS
from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.passes.emitting import GraphEmit
from counterpoint.passes.micro_pipeline.axes import is_fold, shape_of, source_of
from counterpoint.passes.micro_pipeline.gathers import is_returned, refuse_form, refuse_overwritten, wait_of
from counterpoint.passes.micro_pipeline.layout import check_layout, shaped
from counterpoint.passes.micro_pipeline.operators import right_of
from counterpoint.passes.micro_pipeline.outcome import Outcome, is_needed, product_results
from counterpoint.passes.micro_pipeline.products import Product, is_matmul, read_product


@dataclass(frozen=True, eq=False)
class ExchangePlan:
    """An all-to-all and its matmuls."""

    start: Node
    products: tuple[Product, ...]
    behind: bool
    """The matmuls take what is received; otherwise one of them makes what is sent."""
    folds: tuple[Node, ...]
    """The views between the two."""
    chunks: int = 1

    @property
    def starts(self) -> tuple[Node, ...]:
        """The collective whose work the operator does."""
        return (self.start,)

    @property
    def wait(self) -> Node:
        """Where its result is there."""
        return wait_of(self.start)

    @property
    def sent(self) -> Node:
        """What is sent."""
        sent: Node = ops.argument(self.start, "input")
        return sent

    @property
    def ranks(self) -> int:
        """How many parts there are."""
        return len(ops.argument(self.start, "input_split_sizes"))


def read_exchange(start: Node, view: GraphView, taken: Iterable[Node]) -> ExchangePlan | Refusal:
    """The plan of an all-to-all: with the matmuls behind it, or else with the one before it."""
    refusal = refuse_form(start, Kind.ALL_TO_ALL) or _refuse_parts(start)
    if refusal is not None:
        return refusal
    uses, folds = _matmuls_behind(start, view, frozenset(taken))
    if uses:
        return ExchangePlan(start, tuple(uses), True, tuple(folds))
    return _matmul_before(start, frozenset(taken))


def _refuse_parts(start: Node) -> Refusal | None:
    sent, received = (ops.argument(start, f"{end}_split_sizes") for end in ("input", "output"))
    shape = shape_of(ops.argument(start, "input"))
    known = all(isinstance(size, int) and size > 0 for size in (*sent, *received, *shape[:1]))
    if len(shape) < 2 or not known or len({*sent, *received}) != 1 or len(sent) < 2 or sum(sent) != shape[0]:
        return Refusal("exchange-form", start.name, f"parts of {sent} and {received} of shape {list(shape)}")
    return None


def _keeps_rows(fold: Node) -> bool:
    """Whether the view folds rows together or apart and leaves the last dimension."""
    return is_fold(fold) and len(shape_of(fold)) > 1 and shape_of(fold)[-1] == shape_of(source_of(fold))[-1]


def _usable(matmul: Node) -> Product | Refusal:
    product = read_product(matmul)
    if isinstance(product, Product) and (product.scales is not None or product.batched):
        return Refusal("exchange-form", matmul.name, "the matmul is scaled or batched")
    return product


def _matmuls_behind(start: Node, view: GraphView, taken: frozenset[Node]) -> tuple[list[Product], list[Node]]:
    wait, uses, folds = wait_of(start), list[Product](), list[Node]()
    for place in (wait, *(user for user in wait.users if _keeps_rows(user))):
        for user in place.users:
            product = _usable(user) if is_matmul(user) and user not in taken else None
            if not isinstance(product, Product) or product.left is not place or len(shape_of(product.right)) != 2:
                continue
            others = [node for node in (product.right, product.bias) if node is not None]
            overwritten = refuse_overwritten(user, wait, (wait, place), view)
            if overwritten is None and not any(view.depends(other, start) for other in others):
                uses.append(product)
                folds += [place] if place is not wait else []
    return sorted(uses, key=lambda use: use.node), folds


def _matmul_before(start: Node, taken: frozenset[Node]) -> ExchangePlan | Refusal:
    node: Node = ops.argument(start, "input")
    folds: list[Node] = []
    if _keeps_rows(node) and is_matmul(source_of(node)):
        folds, node = [node], source_of(node)
    if not is_matmul(node):
        return Refusal("no-product", node.name, "no matmul takes what is received either")
    if node in taken:
        return Refusal("matmul-taken", node.name)
    beside = [user.name for user in node.users if user not in (start, *folds)]
    beside += [user.name for fold in folds for user in fold.users if user is not start]
    if beside:
        return Refusal("product-used", node.name, ", ".join(beside))
    product = _usable(node)
    return product if isinstance(product, Refusal) else ExchangePlan(start, (product,), False, tuple(folds))


def write_exchange(tx: Transaction, plan: ExchangePlan, outcome: Outcome) -> Node:
    """Add the operator of a plan; returns it."""
    return (_write_behind if plan.behind else _write_before)(tx, plan, outcome)


def _write_behind(tx: Transaction, plan: ExchangePlan, outcome: Outcome) -> Node:
    matmuls = [product.node for product in plan.products]
    emit = GraphEmit(tx, min(matmuls), plan.starts)
    kept = is_returned(plan.start) or is_needed(plan.wait, frozenset(matmuls))
    call = emit(
        OPS.all_to_all_matmul.default,
        plan.sent,
        [right_of(emit, product) for product in plan.products],
        [product.bias for product in plan.products],
        [metadata.tensor_of(matmul).dtype for matmul in matmuls],
        plan.chunks,
        plan.ranks,
        ops.argument(plan.start, "group_name"),
        kept,
    )
    for index, matmul in enumerate(matmuls):
        outcome.results |= product_results(emit, matmul, emit(operator.getitem, call, index))
    if kept:
        received = emit(operator.getitem, call, len(matmuls))
        outcome.keep(plan.start, plan.wait, check_layout(emit, received, plan.wait))
    outcome.gone += [*matmuls, *plan.folds, plan.wait, plan.start]
    outcome.gone += [user for matmul in matmuls for user in matmul.users if user in outcome.results]
    return call


def _write_before(tx: Transaction, plan: ExchangePlan, outcome: Outcome) -> Node:
    (product,) = plan.products
    emit = GraphEmit(tx, plan.start, plan.starts)
    rows = (*shape_of(plan.sent)[:-1], shape_of(product.left)[-1])
    call = emit(
        OPS.matmul_all_to_all.default,
        [shaped(emit, product.left, rows)],
        [right_of(emit, product)],
        product.bias,
        plan.chunks,
        plan.ranks,
        ops.argument(plan.start, "group_name"),
        product.out_dtype,
    )
    outcome.keep(plan.start, plan.wait, check_layout(emit, call, plan.wait))
    outcome.gone += [plan.wait, plan.start, *plan.folds, product.node]
    return call
