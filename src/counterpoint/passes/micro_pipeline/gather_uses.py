"""Which matmuls of a gathered tensor can be computed part by part while it arrives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Node

from counterpoint.ir import metadata
from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.passes.micro_pipeline.axes import Axes, flattened, shape_of, whole
from counterpoint.passes.micro_pipeline.forms import Form, form_of, in_place, plain_form
from counterpoint.passes.micro_pipeline.gathers import Gather, axes_behind, refuse_overwritten
from counterpoint.passes.micro_pipeline.products import Product, is_matmul, read_product


@dataclass(frozen=True)
class ScaleGather:
    """The row scales of a gathered operand, gathered as it is."""

    gather: Gather
    form: Form


@dataclass(frozen=True)
class Use:
    """A matmul of a gathered tensor."""

    product: Product
    form: Form
    """How the gathered operand is laid out."""
    via: tuple[Node, ...]
    """The views between the gathered tensor and the matmul."""
    scale: ScaleGather | None = None
    """None where the operand has no scales, or one for all of it."""

    @property
    def others(self) -> tuple[Node, ...]:
        """The nodes that must be there beside the gathered tensor."""
        product = self.product
        found = [product.right if self.form.left else product.left, product.bias]
        if product.scales is not None:
            found += [product.scales.right, product.scales.result]
            found += [product.scales.left] if self.scale is None else []
        return tuple(node for node in found if node is not None)

    @property
    def key(self) -> tuple[object, ...]:
        """Matmuls with equal keys can share one operator."""
        scale = self.scale.gather.start if self.scale is not None else None
        if self.product.scales is not None and self.scale is None:
            scale = self.product.scales.left
        return (self.form, self.product.scales is not None, scale)


@dataclass(frozen=True)
class Found:
    """What becomes of a gathered tensor."""

    gather: Gather
    uses: tuple[Use, ...]
    refusals: tuple[Refusal, ...]
    """Why other matmuls that use it cannot be computed part by part."""


Places = Mapping[Node, tuple[Gather, Axes]]
"""Every node that is a gathered tensor seen through views."""


def find_uses(gathers: Sequence[Gather], view: GraphView) -> list[Found]:
    """The matmuls of each of these gathers."""
    behind = [list(axes_behind(gather)) for gather in gathers]
    places = {node: (g, axes) for g, seen in zip(gathers, behind, strict=True) for node, axes, _ in seen}
    return [_find(gather, seen, places, view) for gather, seen in zip(gathers, behind, strict=True)]


def _find(
    gather: Gather, behind: Iterable[tuple[Node, Axes, tuple[Node, ...]]], places: Places, view: GraphView
) -> Found:
    uses, refusals = dict[Node, Use](), list[Refusal]()
    for node, axes, via in behind:
        for user in node.users:
            if not is_matmul(user):
                continue
            use = _read_use(gather, user, node, axes, via, places, view)
            if isinstance(use, Refusal):
                refusals.append(use)
            elif use is not None:
                uses.setdefault(user, use)
    return Found(gather, tuple(sorted(uses.values(), key=lambda use: use.product.node)), tuple(refusals))


def _read_use(
    gather: Gather,
    matmul: Node,
    operand: Node,
    axes: Axes,
    via: tuple[Node, ...],
    places: Places,
    view: GraphView,
) -> Use | Refusal | None:
    product = read_product(matmul)
    if isinstance(product, Refusal):
        return product
    left = product.left is operand
    if not left and product.right is not operand:
        # A bias or a scale.
        return None
    if not left and product.scales is not None:
        return Refusal("gathered-operand", matmul.name, f"{operand.name} is its right operand")
    if not left and product.right_turned:
        axes = tuple(reversed(axes))
    form = form_of(axes, left=left, batched=product.batched)
    if form is None:
        return Refusal("gathered-operand", matmul.name, f"{operand.name} holds the ranks' parts interleaved")
    form = plain_form(form, shape_of(gather.shard)) or form
    if not _is_simple(form, gather):
        return Refusal("gathered-operand", matmul.name, f"{operand.name} folds turned dimensions")
    scale = _scale_of(product, form, gather, places)
    if isinstance(scale, Refusal):
        return scale
    use = Use(product, form, via, scale)
    return _refuse_operands(use, gather, view) or use


def _refuse_operands(use: Use, gather: Gather, view: GraphView) -> Refusal | None:
    """Why the matmul does not have all that it needs before the gathered tensor is there, and nothing else of it."""
    matmul = use.product.node
    entangled = next((other for other in use.others if view.depends(other, gather.start)), None)
    if entangled is not None:
        return Refusal("other-operand-gathered", matmul.name, f"{entangled.name} depends on {gather.start.name} too")
    overwritten = refuse_overwritten(matmul, gather.wait, (gather.wait, gather.result, *use.via), view)
    if overwritten is None and use.scale is not None and use.product.scales is not None:
        scale = use.scale.gather
        looked_at = (scale.wait, scale.result, use.product.scales.left)
        return refuse_overwritten(matmul, scale.wait, looked_at, view)
    return overwritten


def _scale_of(product: Product, form: Form, gather: Gather, places: Places) -> ScaleGather | Refusal | None:
    """The gather that the left scales come from; None where there is one scale for everything, or no scale."""
    scales = product.scales
    if scales is None:
        return None
    if form.contracts:
        return Refusal("scale-form", product.node.name, "the gathered dimension is contracted")
    if metadata.tensor_of(scales.left).numel() == 1:
        return None
    found = places.get(scales.left)
    if found is None and shape_of(scales.left) == (*shape_of(product.left)[:-1], 1):
        # Every rank holds the scales of all rows.
        return None
    if found is None or found[0].group != gather.group:
        return Refusal("scale-form", product.node.name, f"{scales.left.name} is not gathered as the operand is")
    scale = form_of(found[1], left=True, batched=False)
    if scale is not None:
        scale = plain_form(scale, shape_of(found[0].shard)) or scale
    if scale is None or scale.dims[-1] or scale.along != form.along or scale.sizes()[:-1] != form.sizes()[:-1]:
        return Refusal("scale-form", product.node.name, f"{scales.left.name} is gathered in another way")
    return ScaleGather(found[0], scale)


def _is_simple(form: Form, gather: Gather) -> bool:
    """Whether the shard takes the form by folding or by turning its dimensions, and not by both."""
    if flattened(in_place(form.dims)) == flattened(form.dims):
        return True
    return sorted(form.dims) == sorted(whole(shape_of(gather.shard)))


def shared_forms(uses: Sequence[Use]) -> Iterator[tuple[Use, ...]]:
    """The matmuls that can share one operator, those that need not sum over parts first, then by number."""
    groups: dict[tuple[object, ...], list[Use]] = {}
    for use in uses:
        groups.setdefault(use.key, []).append(use)
    for group in sorted(groups.values(), key=lambda group: (group[0].form.contracts, -len(group))):
        yield tuple(group)
