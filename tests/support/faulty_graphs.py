"""Small graphs on which passes over collectives are known to go wrong: each is to be rewritten rightly or left alone.

Each takes a `GraphBuilder` with the groups "dp" and "near" and gives the outputs of its graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from counterpoint.ir.build import GraphBuilder

ATEN, C10D = torch.ops.aten, torch.ops._c10d_functional
Outputs = tuple[Node, ...]
Build = Callable[[GraphBuilder], Outputs]


def _inputs(b: GraphBuilder, count: int = 4, dtypes: Any = (torch.float32,)) -> list[Node]:
    return [b.input(f"x{i}", ((4,), (4, 3))[i % 2], dtypes[i % len(dtypes)]) for i in range(count)]


def _reduced(b: GraphBuilder, x: Node, by: Any = 2, op: str = "sum", group: str = "dp") -> Node:
    return b.all_reduce(b.call(ATEN.div.Tensor, x, by), op, group)


def mixed_groups(b: GraphBuilder) -> Outputs:
    """Two groups in turn."""
    return tuple(_reduced(b, x, group=("dp", "near")[i % 2]) for i, x in enumerate(_inputs(b)))


def mixed_reductions(b: GraphBuilder) -> Outputs:
    """Sum and maximum in turn."""
    return tuple(_reduced(b, x, op=("sum", "max")[i % 2]) for i, x in enumerate(_inputs(b)))


def mixed_dtypes(b: GraphBuilder) -> Outputs:
    """Two element types in turn."""
    return tuple(_reduced(b, x) for x in _inputs(b, 6, (torch.float32, torch.bfloat16, torch.bfloat16)))


def differing_divisors(b: GraphBuilder) -> Outputs:
    """Each gradient has a divisor of its own."""
    return tuple(_reduced(b, x, by=2**i) for i, x in enumerate(_inputs(b)))


def divisor_is_a_tensor(b: GraphBuilder) -> Outputs:
    """The divisor is computed."""
    xs = _inputs(b)
    by = b.call(ATEN.full.default, [], 4.0)
    return tuple(_reduced(b, x, by=by) for x in xs)


def symbolic_sizes(b: GraphBuilder) -> Outputs:
    """One size is not known when the graph is rewritten."""
    x, y = b.input("x", (b.symbol("rows", 8), 2)), b.input("y", (4,))
    return _reduced(b, x), _reduced(b, y)


def unbacked_sizes(b: GraphBuilder) -> Outputs:
    """One size depends on values."""
    x, y, z = _inputs(b, 3)
    rows = b.call(ATEN.nonzero.default, b.call(ATEN.ge.Scalar, x, 0))
    return b.all_reduce(rows, "sum", "dp"), _reduced(b, y), _reduced(b, z)


def no_user(b: GraphBuilder) -> Outputs:
    """A wait whose result nobody uses, beside two that are."""
    x, y, z = _inputs(b, 3)
    _reduced(b, x)
    return _reduced(b, y), _reduced(b, z)


def two_waits(b: GraphBuilder) -> Outputs:
    """One collective is waited for twice."""
    x, y, z = _inputs(b, 3)
    start = b.call(C10D.all_reduce.default, b.call(ATEN.div.Tensor, x, 2), "sum", "dp")
    first = b.wait(start)
    return first, b.wait(start), _reduced(b, y), _reduced(b, z)


def keyword_arguments(b: GraphBuilder) -> Outputs:
    """Calls written with keywords only."""
    sent = [b.call(ATEN.div.Tensor, x, other=2) for x in _inputs(b)]
    return tuple(
        b.wait(b.call(C10D.all_reduce.default, input=x, group_name="dp", reduce_op="sum"))
        if i % 2
        else b.wait(
            b.call(C10D.all_gather_into_tensor.default, group_name="dp", input=x, group_size=len(b.groups["dp"]))
        )
        for i, x in enumerate([*sent, *sent])
    )


def in_place(b: GraphBuilder) -> Outputs:
    """Reinplaced reductions."""
    halves = [b.call(ATEN.div.Tensor, x, 2) for x in _inputs(b)]
    return tuple(b.wait(b.call(C10D.all_reduce_.default, half, "sum", "dp")) for half in halves)


def in_place_and_read(b: GraphBuilder) -> Outputs:
    """A reinplaced reduction whose buffer is read afterwards."""
    halves = [b.call(ATEN.div.Tensor, x, 2) for x in _inputs(b)]
    waits = [b.wait(b.call(C10D.all_reduce_.default, half, "sum", "dp")) for half in halves]
    return (*waits, *(b.call(ATEN.add.Tensor, half, 1) for half in halves))


def overwritten_between(b: GraphBuilder) -> Outputs:
    """What is sent first is overwritten before what is sent next exists."""
    x, y, z = b.input("x", (4,)), b.input("y", (4,)), b.input("z", (4,))
    first = (b.all_reduce(x, "sum", "dp"), b.all_gather(x, "dp"))
    written = b.call(ATEN.copy_.default, x, y)
    sent = b.call(ATEN.add.Tensor, written, z)
    return (*first, b.all_reduce(sent, "sum", "dp"), b.all_gather(sent, "dp"))


def result_copied_back(b: GraphBuilder) -> Outputs:
    """The result is copied into the parameter, which is read before the next reduction."""
    p, q = b.input("p", (4,)), b.input("q", (4,))
    written = b.call(ATEN.copy_.default, p, _reduced(b, p))
    return written, _reduced(b, b.call(ATEN.add.Tensor, written, q)), b.call(ATEN.mul.Tensor, p, 3)


def one_value_twice(b: GraphBuilder) -> Outputs:
    """One gradient is reduced twice, once through the same division and once through another."""
    x, y = b.input("x", (4,)), b.input("y", (4, 3))
    half = b.call(ATEN.div.Tensor, x, 2)
    return b.all_reduce(half, "sum", "dp"), b.all_reduce(half, "sum", "dp"), _reduced(b, x), _reduced(b, y)


def shared_fake_values(b: GraphBuilder) -> Outputs:
    """Two nodes carry the same object as their value."""
    x, y = b.input("x", (4,)), b.input("y", (4,))
    y.meta["val"] = x.meta["val"]
    sent = [b.call(ATEN.div.Tensor, value, 2) for value in (x, y)]
    sent[1].meta["val"] = sent[0].meta["val"]
    return (*(b.all_reduce(v, "sum", "dp") for v in sent), *(b.all_gather(v, "dp") for v in sent))


def dependent(b: GraphBuilder) -> Outputs:
    """Two chains in turn."""
    x, y = b.input("x", (4,)), b.input("y", (4, 3))
    ends = []
    for value in (x, y):
        first = b.all_reduce(value, "sum", "dp")
        ends += [first, b.all_reduce(b.call(ATEN.add.Tensor, first, 1), "sum", "dp")]
    return tuple(ends)


def across_kinds(b: GraphBuilder) -> Outputs:
    """a before b and c before d, with a and d of one kind, b and c of the other."""
    x, y = b.input("x", (4,)), b.input("y", (4,))
    first = b.all_reduce(x, "sum", "dp")
    other = b.all_gather(y, "dp")
    return b.all_gather(first, "dp"), b.all_reduce(other, "sum", "dp")


def not_contiguous(b: GraphBuilder) -> Outputs:
    """Transposed, expanded and sliced values are sent."""
    x, y, z = b.input("x", (4, 6)), b.input("y", (4, 1)), b.input("z", (8, 4))
    sent = [
        b.call(ATEN.permute.default, x, [1, 0]),
        b.call(ATEN.expand.default, y, [4, 5]),
        b.call(ATEN.slice.Tensor, z, 1, 1, 3),
    ]
    return (*(_reduced(b, v) for v in sent), *(b.all_reduce(v, "sum", "dp") for v in sent))


def gathers_of_odd_bytes(b: GraphBuilder) -> Outputs:
    """Three gathers of two bytes an element, then one of four."""
    xs = [b.input(f"x{i}", (4, 3), torch.bfloat16) for i in range(3)] + [b.input("y", (3,))]
    return tuple(b.all_gather(x, "dp") for x in xs)


def read_before_the_next(b: GraphBuilder) -> Outputs:
    """A result is used before the next gradient exists."""
    x, y = b.input("x", (4,)), b.input("y", (4,))
    first = _reduced(b, x)
    early = b.call(ATEN.mul.Tensor, first, 2)
    return early, _reduced(b, b.call(ATEN.neg.default, y))


FAULTY: tuple[Build, ...] = (
    mixed_groups,
    mixed_reductions,
    mixed_dtypes,
    differing_divisors,
    divisor_is_a_tensor,
    symbolic_sizes,
    unbacked_sizes,
    no_user,
    two_waits,
    keyword_arguments,
    in_place,
    in_place_and_read,
    overwritten_between,
    result_copied_back,
    one_value_twice,
    shared_fake_values,
    dependent,
    across_kinds,
    not_contiguous,
    gathers_of_odd_bytes,
    read_before_the_next,
)
