"""Comparing with the reference: right rewrites pass, wrong ones are named. A case is a function that builds a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node

from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.verify import Finding, Snapshot, verify

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
GROUPS = {"dp": range(4), "tp": range(2), "other": range(4)}
SHAPES = ((3, 4), (2, 6), (2, 2, 4))

Build = Callable[[GraphBuilder, list[Node]], list[Any]]


def graph(
    build: Build, shapes: tuple[tuple[Any, ...], ...] = SHAPES, dtype: torch.dtype = torch.float32
) -> GraphModule:
    builder = GraphBuilder(GROUPS)
    inputs = [builder.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)]
    return builder.finish(*build(builder, inputs))


def compare(before: Build, after: Build, **options: Any) -> tuple[Finding, ...]:
    reference = Snapshot.of(graph(before, **options), groups=GROUPS)
    assert not reference.known
    return verify(graph(after, **options), reference=reference)


def codes(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.code for finding in findings}


def shape(b: GraphBuilder, x: Node) -> list[Any]:
    """The sizes of a tensor, as nodes where they are symbolic."""
    sizes = enumerate(x.meta["val"].shape)
    return [b.call(aten.sym_size.int, x, i) if isinstance(size, torch.SymInt) else size for i, size in sizes]


def times(b: GraphBuilder, left: Any, right: Any) -> Any:
    return b.call(operator.mul, left, right) if isinstance(left, Node) or isinstance(right, Node) else left * right


def numel(b: GraphBuilder, x: Node) -> Any:
    total: Any = 1
    for size in shape(b, x):
        total = times(b, total, size)
    return total


# -- all-reduce -------------------------------------------------------------------------------------------------------


def ddp(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    return [b.all_reduce(b.call(aten.div.Tensor, x, 4), "sum", "dp") for x in xs]


def bucket(
    b: GraphBuilder, xs: list[Node], reduce: Callable[[Node], Node], order: tuple[int, ...] = (0, 1, 2)
) -> list[Any]:
    parts = [b.call(aten.reshape.default, x, [-1]) for x in xs]
    reduced = reduce(b.call(aten.cat.default, parts))
    pieces = b.call(aten.split_with_sizes.default, reduced, [numel(b, x) for x in xs])
    outs = []
    for i, x in zip(order, xs, strict=True):
        piece = b.call(operator.getitem, pieces, i)
        outs.append(b.call(aten.view.default, piece, shape(b, x)))
    return outs


def scaled_then(b: GraphBuilder, op: str = "sum", group: str = "dp", by: float = 4) -> Callable[[Node], Node]:
    return lambda packed: b.all_reduce(b.call(aten.div.Tensor, packed, by), op, group)


def packed_with_copies(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    """A buffer of zeros filled by writes into its slices, reduced in place."""
    sizes = [numel(b, x) for x in xs]
    buffer = b.call(aten.empty.memory_format, [sum(sizes)])
    pieces = b.call(aten.split_with_sizes.default, buffer, sizes)
    slices = [b.call(operator.getitem, pieces, i) for i in range(len(xs))]
    flat = [b.call(aten.view.default, x, [-1]) for x in xs]
    b.call(aten._foreach_copy_.default, slices, flat)
    b.call(aten.mul_.Tensor, buffer, 0.25)
    reduced = b.wait(b.call(c10d.all_reduce_.default, buffer, "sum", "dp"))
    outs, start = [], 0
    for x, size in zip(xs, sizes, strict=True):
        piece = b.call(aten.slice.Tensor, reduced, 0, start, start + size)
        outs.append(b.call(aten.view.default, piece, shape(b, x)))
        start += size
    return outs


def coalesced(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    scaled = b.call(aten._foreach_div.Scalar, xs, 4)
    members = [b.call(operator.getitem, scaled, i) for i in range(len(xs))]
    started = b.call(c10d.all_reduce_coalesced.default, members, "sum", "dp")
    return [b.wait(b.call(operator.getitem, started, i)) for i in range(len(xs))]


def coalesced_in_place(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    members = [b.call(aten.div.Tensor, x, 4) for x in xs]
    started = b.call(c10d.all_reduce_coalesced_.default, members, "sum", "dp")
    return [b.wait(b.call(operator.getitem, started, i)) for i in range(len(xs))]


def div_after(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    return [b.call(aten.mul.Tensor, b.all_reduce(x, "sum", "dp"), 0.25) for x in xs]


def average(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    return [b.all_reduce(x, "avg", "dp") for x in xs]


def scatter_then_gather(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    return bucket(b, xs, lambda p: b.all_gather(b.reduce_scatter(b.call(aten.div.Tensor, p, 4), "sum", "dp"), "dp"))


RIGHT_ALL_REDUCE = [
    ddp,
    lambda b, xs: bucket(b, xs, scaled_then(b)),
    packed_with_copies,
    coalesced,
    coalesced_in_place,
    div_after,
    average,
    scatter_then_gather,
]


@pytest.mark.parametrize("after", RIGHT_ALL_REDUCE)
def test_right_rewrites_of_gradient_reduction_pass(after: Build) -> None:
    assert compare(ddp, after) == ()


def mistake(number: int, wrong: Callable[[GraphBuilder, Node], Node]) -> Build:
    """The DDP graph, with a mistake in one member."""

    def build(b: GraphBuilder, xs: list[Node]) -> list[Any]:
        return [
            wrong(b, x) if i == number else b.all_reduce(b.call(aten.div.Tensor, x, 4), "sum", "dp")
            for i, x in enumerate(xs)
        ]

    return build


def div4(b: GraphBuilder, x: Node) -> Node:
    return b.call(aten.div.Tensor, x, 4)


WRONG_ALL_REDUCE = {
    "group-changed": lambda b, xs: bucket(b, xs, scaled_then(b, group="other")),
    "reduce-op-changed": lambda b, xs: bucket(b, xs, scaled_then(b, op="max")),
    "divisor-changed": lambda b, xs: bucket(b, xs, scaled_then(b, by=2)),
    "value-changed": lambda b, xs: bucket(b, xs, scaled_then(b), order=(1, 0, 2)),
    "not-reduced": mistake(1, div4),
    "reduced-twice": mistake(1, lambda b, x: b.all_reduce(b.all_reduce(div4(b, x), "sum", "dp"), "sum", "dp")),
    "dtype-changed": mistake(
        1,
        lambda b, x: b.call(
            aten._to_copy.default,
            b.all_reduce(b.call(aten._to_copy.default, div4(b, x), dtype=torch.bfloat16), "sum", "dp"),
            dtype=torch.float32,
        ),
    ),
    "collective-changed": mistake(
        1,
        lambda b, x: b.wait(b.call(c10d.broadcast.default, div4(b, x), 0, "dp")),
    ),
}


@pytest.mark.parametrize("code", WRONG_ALL_REDUCE)
def test_wrong_rewrites_of_gradient_reduction_are_named(code: str) -> None:
    found = compare(ddp, WRONG_ALL_REDUCE[code])
    assert code in codes(found)
    assert all(finding.is_error for finding in found)


# -- gather and scatter -----------------------------------------------------------------------------------------------


def gathers(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    return [b.all_gather(x, "dp") for x in xs]


def gathered_pieces(b: GraphBuilder, xs: list[Node], whole: Node) -> list[Any]:
    """The members of a gathered bucket."""
    rows = b.call(aten.reshape.default, whole, [4, -1])
    pieces = b.call(aten.split_with_sizes.default, rows, [numel(b, x) for x in xs], 1)
    outs = []
    for i, x in enumerate(xs):
        first, *rest = shape(b, x)
        outs.append(b.call(aten.reshape.default, b.call(operator.getitem, pieces, i), [times(b, 4, first), *rest]))
    return outs


def gather_bucket(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    flat = b.call(aten.cat.default, [b.call(aten.reshape.default, x, [-1]) for x in xs])
    return gathered_pieces(b, xs, b.all_gather(flat, "dp"))


def gather_bucket_into_its_own_buffer(b: GraphBuilder, xs: list[Node], rank: int = 1) -> list[Any]:
    total = sum(numel(b, x) for x in xs)
    out = b.call(aten.empty.memory_format, [4 * total])
    mine = b.call(aten.slice.Tensor, out, 0, rank * total, (rank + 1) * total)
    flat = b.call(aten.cat.default, [b.call(aten.reshape.default, x, [-1]) for x in xs])
    b.call(aten.copy_.default, mine, flat)
    return gathered_pieces(b, xs, b.wait(b.call(c10d.all_gather_into_tensor_out.default, mine, 4, "dp", out=out)))


def gather_bucket_of_bytes(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    flat = [b.call(aten.view.dtype, b.call(aten.reshape.default, x, [-1]), torch.uint8) for x in xs]
    rows = b.call(aten.reshape.default, b.all_gather(b.call(aten.cat.default, flat), "dp"), [4, -1])
    pieces = b.call(aten.split_with_sizes.default, rows, [times(b, 4, numel(b, x)) for x in xs], 1)
    outs = []
    for i, x in enumerate(xs):
        first, *rest = shape(b, x)
        piece = b.call(aten.clone.default, b.call(operator.getitem, pieces, i), memory_format=torch.contiguous_format)
        typed = b.call(aten.view.dtype, piece, torch.float32)
        outs.append(b.call(aten.reshape.default, typed, [times(b, 4, first), *rest]))
    return outs


def gather_coalesced(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    started = b.call(c10d.all_gather_into_tensor_coalesced.default, xs, 4, "dp")
    return [b.wait(b.call(operator.getitem, started, i)) for i in range(len(xs))]


@pytest.mark.parametrize(
    "after", [gather_bucket, gather_bucket_into_its_own_buffer, gather_bucket_of_bytes, gather_coalesced]
)
def test_right_rewrites_of_gathers_pass(after: Build) -> None:
    assert compare(gathers, after) == ()


def test_gather_bucket_split_the_wrong_way_is_named() -> None:
    def wrong(b: GraphBuilder, xs: list[Node]) -> list[Any]:
        # Cuts the gathered buffer as if each member lay in one piece.
        flat = b.call(aten.cat.default, [b.call(aten.reshape.default, x, [-1]) for x in xs])
        sizes = [4 * numel(b, x) for x in xs]
        pieces = b.call(aten.split_with_sizes.default, b.all_gather(flat, "dp"), sizes)
        shapes = [[4 * shape(b, x)[0], *shape(b, x)[1:]] for x in xs]
        return [b.call(aten.view.default, b.call(operator.getitem, pieces, i), s) for i, s in enumerate(shapes)]

    found = compare(gathers, wrong)
    assert found
    assert all(finding.is_error for finding in found)


LARGE = ((8, 3), (4, 5), (12,))


def scatters(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    return [b.reduce_scatter(x, "avg", "dp") for x in xs]


def scatter_bucket(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    rows = [b.call(aten.reshape.default, x, [4, -1]) for x in xs]
    packed = b.call(aten.reshape.default, b.call(aten.cat.default, rows, 1), [-1])
    sizes = [numel(b, x) // 4 for x in xs]
    pieces = b.call(aten.split_with_sizes.default, b.reduce_scatter(packed, "avg", "dp"), sizes)
    outs = []
    for i, x in enumerate(xs):
        first, *rest = shape(b, x)
        outs.append(b.call(aten.reshape.default, b.call(operator.getitem, pieces, i), [first // 4, *rest]))
    return outs


def scatter_coalesced(b: GraphBuilder, xs: list[Node]) -> list[Any]:
    scaled = [b.call(aten.div.Tensor, x, 4) for x in xs]
    started = b.call(c10d.reduce_scatter_tensor_coalesced.default, scaled, "sum", 4, "dp")
    return [b.wait(b.call(operator.getitem, started, i)) for i in range(len(xs))]


@pytest.mark.parametrize("after", [scatter_bucket, scatter_coalesced])
def test_right_rewrites_of_scatters_pass(after: Build) -> None:
    assert compare(scatters, after, shapes=LARGE) == ()


def test_scatter_bucket_without_interleaving_is_named() -> None:
    def wrong(b: GraphBuilder, xs: list[Node]) -> list[Any]:
        packed = b.call(aten.cat.default, [b.call(aten.reshape.default, x, [-1]) for x in xs])
        sizes = [numel(b, x) // 4 for x in xs]
        pieces = b.call(aten.split_with_sizes.default, b.reduce_scatter(packed, "avg", "dp"), sizes)
        shapes = [[shape(b, x)[0] // 4, *shape(b, x)[1:]] for x in xs]
        return [b.call(aten.view.default, b.call(operator.getitem, pieces, i), s) for i, s in enumerate(shapes)]

    assert compare(scatters, wrong, shapes=LARGE)


def test_bucket_of_many_members_and_ranks_stays_in_one_form() -> None:
    shapes = tuple((i % 3 + 1, 2) for i in range(120))
    assert compare(gathers, gather_bucket, shapes=shapes) == ()
    large = tuple((4 * (i % 3 + 1), 2) for i in range(120))
    assert compare(scatters, scatter_bucket, shapes=large) == ()
    assert compare(ddp, lambda b, xs: bucket(b, xs, scaled_then(b), tuple(range(120))), shapes=shapes) == ()


def test_cast_moves_through_a_gather_but_not_through_a_reduction() -> None:
    def narrow_first(kind: str) -> Build:
        def build(b: GraphBuilder, xs: list[Node]) -> list[Any]:
            narrow = [b.call(aten._to_copy.default, x, dtype=torch.bfloat16) for x in xs]
            return [getattr(b, kind)(x, group="dp") for x in narrow]

        return build

    def narrow_last(kind: str) -> Build:
        def build(b: GraphBuilder, xs: list[Node]) -> list[Any]:
            wide = [getattr(b, kind)(x, group="dp") for x in xs]
            return [b.call(torch.ops.prims.convert_element_type.default, x, torch.bfloat16) for x in wide]

        return build

    assert compare(narrow_last("all_gather"), narrow_first("all_gather")) == ()
    assert codes(compare(narrow_last("all_reduce"), narrow_first("all_reduce"))) == {"dtype-changed"}


# -- whole graphs -----------------------------------------------------------------------------------------------------


def step(b: GraphBuilder, xs: list[Node], gather: Callable[[GraphBuilder, Node], Node]) -> list[Any]:
    weight, data = xs
    return [b.call(aten.relu.default, b.call(aten.mm.default, data, gather(b, weight)))]


STEP = ((2, 3), (5, 8))


def test_an_operator_behind_the_collective_sees_the_difference() -> None:
    def plain(b: GraphBuilder, xs: list[Node]) -> list[Any]:
        return step(b, xs, lambda b, w: b.all_gather(w, "dp"))

    def other_group(b: GraphBuilder, xs: list[Node]) -> list[Any]:
        return step(b, xs, lambda b, w: b.all_gather(w, "other"))

    def unknown(b: GraphBuilder, xs: list[Node]) -> list[Any]:
        return [b.call(aten.sigmoid.default, b.call(aten.mm.default, xs[1], b.all_gather(xs[0], "dp")))]

    assert compare(plain, plain, shapes=STEP) == ()
    (wrong,) = compare(plain, other_group, shapes=STEP)
    assert (wrong.code, wrong.is_error) == ("group-changed", True)
    assert "dp" in wrong.message
    assert "other" in wrong.message
    (open_question,) = compare(plain, unknown, shapes=STEP)
    assert (open_question.code, open_question.is_error) == ("unproven", False)


def test_a_collective_sent_twice_is_named_and_one_shared_is_right() -> None:
    def twice(b: GraphBuilder, xs: list[Node]) -> list[Any]:
        return [b.all_reduce(xs[0], group="dp"), b.all_reduce(xs[0], group="dp")]

    def once(b: GraphBuilder, xs: list[Node]) -> list[Any]:
        return [b.all_reduce(xs[0], group="dp")] * 2

    assert compare(twice, once) == ()
    assert codes(compare(once, twice)) == {"collective-duplicated"}


def test_a_collective_that_nothing_needs_is_named() -> None:
    def more(b: GraphBuilder, xs: list[Node]) -> list[Any]:
        b.all_reduce(b.call(aten.relu.default, xs[0]), group="dp")
        return ddp(b, xs)

    assert codes(compare(ddp, more)) == {"collective-added"}


def test_dropped_gather_is_named() -> None:
    def kept(b: GraphBuilder, xs: list[Node]) -> list[Any]:
        return [b.call(aten.slice.Tensor, b.all_gather(xs[0], "dp"), 0, 0, 3)]

    def dropped(b: GraphBuilder, xs: list[Node]) -> list[Any]:
        return [b.call(aten.slice.Tensor, xs[0], 0, 0, 3)]

    assert codes(compare(kept, dropped)) == {"collective-dropped", "aliasing-changed"}


def test_values_from_other_inputs_are_named() -> None:
    def swapped(b: GraphBuilder, xs: list[Node]) -> list[Any]:
        return ddp(b, [xs[1], xs[0], xs[2]])

    assert codes(compare(ddp, swapped, shapes=((4,), (4,), (4,)))) == {"value-changed"}


def test_writes_into_inputs_are_compared() -> None:
    def update(amount: float) -> Build:
        def build(b: GraphBuilder, xs: list[Node]) -> list[Any]:
            b.call(aten.copy_.default, xs[0], b.all_reduce(b.call(aten.mul.Tensor, xs[1], amount), group="dp"))
            return []

        return build

    same = ((3, 4), (3, 4))
    assert compare(update(2), update(2), shapes=same) == ()
    assert codes(compare(update(2), update(3), shapes=same)) == {"divisor-changed"}


def test_parts_in_other_places_of_one_value_are_named() -> None:
    def joined(*order: int) -> Build:
        return lambda b, xs: [b.call(aten.cat.default, [b.all_reduce(xs[i], group="dp") for i in order])]

    same = ((2, 4), (2, 4))
    assert codes(compare(joined(0, 1), joined(1, 0), shapes=same)) == {"value-moved"}


def test_symbolic_buckets_pass_and_wrong_ones_are_named() -> None:
    def sized(build: Build) -> GraphModule:
        b = GraphBuilder(GROUPS)
        n, m = b.symbol("n", 6), b.symbol("m", 10)
        xs = [b.input("x0", (n, 4)), b.input("x1", (m,)), b.input("x2", (n, 4))]
        return b.finish(*build(b, xs))

    reference = Snapshot.of(sized(ddp), groups=GROUPS)
    assert verify(sized(lambda b, xs: bucket(b, xs, scaled_then(b))), reference=reference) == ()
    wrong = sized(lambda b, xs: bucket(b, xs, scaled_then(b), order=(2, 1, 0)))
    assert codes(verify(wrong, reference=reference)) == {"value-changed"}
    gathered = Snapshot.of(sized(gathers), groups=GROUPS)
    assert verify(sized(gather_bucket), reference=gathered) == ()


def test_parts_at_places_that_cannot_be_told_are_compared_as_they_are_cut() -> None:
    def cut(first: int, part: int) -> GraphModule:
        b = GraphBuilder(GROUPS)
        n = b.symbol("n", 6)
        x, y = b.input("x0", (n, 4)), b.input("x1", (4,))
        joined = b.call(aten.cat.default, [b.call(aten.reshape.default, x, [-1]), y])
        rest = b.call(operator.sub, b.call(aten.sym_size.int, joined, 0), first)
        parts = b.call(aten.split_with_sizes.default, joined, [first, rest])
        # One user takes a part, the other the list.
        taken = b.call(operator.getitem, parts, part)
        return b.finish(b.call(aten.neg.default, taken), b.call(aten.block_diag.default, parts))

    reference = Snapshot.of(cut(2, 0), groups=GROUPS)
    assert verify(cut(2, 0), reference=reference) == ()
    assert verify(cut(3, 0), reference=reference)
    assert verify(cut(2, 1), reference=reference)


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (1,)])
def test_scalars_and_empty_tensors_pass(shape: tuple[int, ...]) -> None:
    shapes = (shape, (8,), shape)
    assert compare(ddp, lambda b, xs: bucket(b, xs, scaled_then(b)), shapes=shapes) == ()


def test_all_to_all_is_compared_by_its_splits() -> None:
    def exchange(sizes: list[int]) -> Build:
        def build(b: GraphBuilder, xs: list[Node]) -> list[Any]:
            return [b.wait(b.call(c10d.all_to_all_single.default, xs[0], sizes, sizes, "dp"))]

        return build

    assert compare(exchange([2, 2, 2, 2]), exchange([2, 2, 2, 2]), shapes=((8,),)) == ()
    assert compare(exchange([1, 3, 2, 2]), exchange([1, 3, 2, 2]), shapes=((8,),)) == ()
    assert compare(exchange([2, 2, 2, 2]), exchange([1, 3, 2, 2]), shapes=((8,),))


def half_reduced(b: GraphBuilder, x: Node, half: int = 0) -> Node:
    """A copy of a tensor, one half of which every rank has reduced in place."""
    own = b.call(aten.clone.default, x)
    rows = x.meta["val"].shape[0] // 2
    b.wait(
        b.call(c10d.all_reduce_.default, b.call(aten.slice.Tensor, own, 0, half * rows, (half + 1) * rows), "sum", "tp")
    )
    return own


def in_blocks(kind: str, half: int, bucketed: bool, order: tuple[int, int] = (0, 1)) -> Build:
    """Two exchanges of blocks, alone or as one; the first sends what differs from block to block."""

    def exchange(b: GraphBuilder, x: Node) -> Node:
        if kind == "scatter":
            return b.reduce_scatter(x, "sum", "tp")
        sizes = [x.meta["val"].shape[0] // 2] * 2
        return b.wait(b.call(c10d.all_to_all_single.default, x, sizes, sizes, "tp"))

    def build(b: GraphBuilder, xs: list[Node]) -> list[Any]:
        sent = [half_reduced(b, xs[0], half), xs[1]]
        if not bucketed:
            return [exchange(b, x) for x in sent]
        packed = b.call(aten.cat.default, [b.call(aten.view.default, x, [2, -1]) for x in sent], 1)
        received = exchange(b, b.call(aten.view.default, packed, [-1]))
        rows = b.call(aten.view.default, received, [-1, packed.meta["val"].shape[1]])
        widths = [x.meta["val"].shape[0] // 2 for x in xs]
        parts = b.call(aten.split_with_sizes.default, rows, widths, 1)
        return [b.call(aten.reshape.default, b.call(operator.getitem, parts, i), [-1]) for i in order]

    return build


@pytest.mark.parametrize("kind", ["scatter", "all-to-all"])
def test_blocks_with_different_content_are_compared_member_by_member(kind: str) -> None:
    alone = in_blocks(kind, 0, False)
    assert compare(alone, in_blocks(kind, 0, True), shapes=((8,), (8,))) == ()
    assert compare(alone, in_blocks(kind, 0, True), shapes=((8,), (12,))) == ()
    wrong = [in_blocks(kind, 1, True), in_blocks(kind, 0, True, (1, 0)), in_blocks(kind, 1, False)]
    for after in wrong:
        assert any(finding.is_error for finding in compare(alone, after, shapes=((8,), (8,))))


def test_blocks_cut_from_other_places_of_one_value_are_named() -> None:
    def sends(*starts: int) -> Build:
        def build(b: GraphBuilder, xs: list[Node]) -> list[Any]:
            parts = [b.call(aten.slice.Tensor, xs[0], 0, start, start + 4) for start in starts]
            return [b.reduce_scatter(b.call(aten.cat.default, parts), "sum", "tp")]

        return build

    assert compare(sends(0, 4), sends(0, 4), shapes=((16,),)) == ()
    assert codes(compare(sends(0, 4), sends(0, 12), shapes=((16,),))) == {"value-moved"}
