"""The forms in which captured graphs reduce a gradient, and a graph of several reductions in one form or in many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from counterpoint.ir.build import GraphBuilder

ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional
GROUPS = {"dp": range(4), "near": (0, 1)}

Form = Callable[[GraphBuilder, Node], Node]


def reduced(builder: GraphBuilder, value: Node, op: str = "sum", group: str = "dp") -> Node:
    return builder.all_reduce(value, op, group)


def divided(b: GraphBuilder, x: Node) -> Node:
    return reduced(b, b.call(ATEN.div.Tensor, x, 4))


def by_reciprocal(b: GraphBuilder, x: Node) -> Node:
    return reduced(b, b.call(ATEN.mul.Tensor, x, 0.25))


def by_scalar_overload(b: GraphBuilder, x: Node) -> Node:
    return reduced(b, b.call(ATEN.div.Scalar, x, 4))


def averaged(b: GraphBuilder, x: Node) -> Node:
    return reduced(b, x, "avg")


def divided_afterwards(b: GraphBuilder, x: Node) -> Node:
    return b.call(ATEN.div.Tensor, reduced(b, x), 4)


def divided_on_both_sides(b: GraphBuilder, x: Node) -> Node:
    return b.call(ATEN.div.Tensor, reduced(b, b.call(ATEN.div.Tensor, x, 2)), 2)


def compressed(b: GraphBuilder, x: Node) -> Node:
    small = b.call(ATEN.div.Tensor, b.call(ATEN._to_copy.default, x, dtype=torch.bfloat16), 4)
    return b.call(ATEN.copy.default, x, reduced(b, small))


def compressed_then_cast(b: GraphBuilder, x: Node) -> Node:
    small = b.call(torch.ops.prims.convert_element_type.default, b.call(ATEN.div.Tensor, x, 4), torch.float16)
    return b.call(torch.ops.prims.convert_element_type.default, reduced(b, small), torch.float32)


def copied(b: GraphBuilder, x: Node) -> Node:
    own = b.call(ATEN.clone.default, x)
    return b.call(ATEN.copy_.default, own, reduced(b, b.call(ATEN.div.Tensor, own, 4)))


def through_views(b: GraphBuilder, x: Node) -> Node:
    flat = b.call(ATEN.view.default, b.call(ATEN.div.Tensor, b.call(ATEN.reshape.default, x, [-1]), 4), [-1])
    shape = list(x.meta["val"].shape)
    return b.call(ATEN.div.Tensor, b.call(ATEN.reshape.default, reduced(b, flat), shape), 2)


def in_place(b: GraphBuilder, x: Node) -> Node:
    return b.wait(b.call(C10D.all_reduce_.default, b.call(ATEN.div.Tensor, x, 4), "sum", "dp"))


def by_keywords(b: GraphBuilder, x: Node) -> Node:
    half = b.call(ATEN.div.Tensor, x, other=4)
    return b.wait(b.call(C10D.all_reduce.default, input=half, group_name="dp", reduce_op="sum"))


def not_scaled(b: GraphBuilder, x: Node) -> Node:
    return reduced(b, x)


def used_twice(b: GraphBuilder, x: Node) -> Node:
    wait = divided(b, x)
    return b.call(ATEN.add.Tensor, wait, b.call(ATEN.neg.default, wait))


def not_used(b: GraphBuilder, x: Node) -> Node:
    divided(b, x)
    return b.call(ATEN.neg.default, x)


def divisor_is_a_tensor(b: GraphBuilder, x: Node) -> Node:
    return reduced(b, b.call(ATEN.div.Tensor, x, b.call(ATEN.full.default, [], 4.0)))


FORMS: tuple[Form, ...] = (
    divided,
    by_reciprocal,
    by_scalar_overload,
    averaged,
    divided_afterwards,
    divided_on_both_sides,
    compressed,
    compressed_then_cast,
    copied,
    through_views,
    in_place,
    by_keywords,
    not_scaled,
    used_twice,
    not_used,
    divisor_is_a_tensor,
)
SHAPES = ((4,), (2, 3), (5, 1, 2))


def of_forms(
    *forms: Form, shapes: Any = SHAPES, meta: bool = True, groups: Any = GROUPS
) -> tuple[GraphModule, GraphBuilder]:
    """A reduction of each shape, all in one form or each in its own."""
    builder = GraphBuilder(groups)
    inputs = [builder.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    every = forms * len(inputs) if len(forms) == 1 else forms
    gm = builder.finish(
        *(form(builder, builder.call(ATEN.neg.default, x)) for form, x in zip(every, inputs, strict=True))
    )
    for node in gm.graph.nodes:
        if not meta:
            node.meta.pop("tensor_meta", None)
    return gm, builder
