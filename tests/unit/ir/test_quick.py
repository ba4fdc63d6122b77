"""The quick way to a fake value and the dispatcher agree, wherever the quick way answers."""

import operator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoint._torch import FakeTensorMode, tensor_metadata
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.packing import OPS
from counterpoint.ir.quick import quick_value

ATEN = torch.ops.aten
C10D = torch.ops._c10d_functional
MODE = FakeTensorMode()


def fake(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with MODE:
        return torch.empty(shape, dtype=dtype)


def facts(value: Any, source: torch.Tensor) -> Any:
    if isinstance(value, (list, tuple)):
        return [facts(item, source) for item in value]
    shares = value.untyped_storage()._cdata == source.untyped_storage()._cdata
    return tuple(value.shape), value.stride(), value.dtype, value.device, value.storage_offset(), shares


def agree(target: Any, source: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """The quick way answers, and as the dispatcher does."""
    quick = quick_value(target, args, kwargs, MODE)
    assert quick is not NotImplemented
    with MODE:
        slow = target(*args, **kwargs)
    assert facts(quick, source) == facts(slow, source)


shapes = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool])


@given(shapes, dtypes, st.integers(0, 2))
def test_reshape_and_view(shape: tuple[int, ...], dtype: torch.dtype, keep: int) -> None:
    x = fake(shape, dtype)
    agree(ATEN.view.default, x, x, [x.numel()])
    if x.numel():
        agree(ATEN.reshape.default, x, x, [*shape[:keep], -1])


@given(shapes.filter(lambda shape: 0 not in shape))
def test_what_gathers_in_place_consist_of(shape: tuple[int, ...]) -> None:
    x = fake(shape)
    with MODE:
        turned = x.transpose(0, -1)
    for part in (x, turned):
        agree(ATEN.clone.default, x, part, memory_format=torch.contiguous_format)
        agree(C10D.all_reduce.default, x, part, "sum", "0")
        agree(C10D.wait_tensor.default, x, part)
    agree(ATEN._unsafe_view.default, x, x, [x.numel()])
    for scale in (ATEN.div.Tensor, ATEN.div.Scalar, ATEN.mul.Tensor, ATEN.mul.Scalar):
        agree(scale, x, x, 8)
        agree(scale, x, fake(shape, torch.bfloat16), 0.125)
    agree(ATEN.slice.Tensor, x, x, 0, 0, 1)
    agree(ATEN.copy_.default, x, x, fake(shape, torch.bfloat16))
    agree(ATEN.empty.memory_format, x, list(shape), dtype=torch.int64, device=torch.device("cpu"), pin_memory=False)
    if len(shape) > 1:
        agree(ATEN.flatten.using_ints, x, x)


@given(shapes.filter(lambda shape: 0 not in shape), dtypes, dtypes, st.sampled_from([None, torch.float32]))
def test_packing_rows(shape: tuple[int, ...], one: torch.dtype, other: torch.dtype, to: torch.dtype | None) -> None:
    x, y = fake((2, *shape), one), fake((4,), other)
    agree(OPS.pack_rows.default, x, [x, y], 2, *([to] if to is not None else []))
    packed = fake((2 * (x.nbytes + y.nbytes),), torch.uint8)
    agree(OPS.unpack_rows.default, packed, packed, 2, [4, *shape, 8], [1 + len(shape), 1], [one, other])


@given(shapes, st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 2))
def test_cat_and_split(shape: tuple[int, ...], lengths: list[int], dim: int) -> None:
    dim = min(dim, len(shape) - 1)
    parts = [fake((*shape[:dim], length, *shape[dim + 1 :])) for length in lengths]
    agree(ATEN.cat.default, parts[0], parts, dim)
    whole = fake((*shape[:dim], sum(lengths), *shape[dim + 1 :]))
    agree(ATEN.split_with_sizes.default, whole, whole, lengths, dim)


@given(shapes, dtypes)
def test_collectives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, rows = fake(shape, dtype), fake((shape[0] * 4, *shape[1:]), dtype)
    agree(C10D.all_reduce.default, x, x, "sum", "0")
    agree(C10D.wait_tensor.default, x, x)
    agree(C10D.all_gather_into_tensor.default, x, x, 4, "0")
    agree(C10D.reduce_scatter_tensor.default, rows, rows, "sum", 4, "0")


@given(st.lists(st.tuples(shapes, dtypes), min_size=1, max_size=3))
def test_lists(made: list[tuple[tuple[int, ...], torch.dtype]]) -> None:
    tensors = [fake(shape, dtype) for shape, dtype in made]
    agree(C10D.all_reduce_coalesced.default, tensors[0], tensors, "sum", "0")
    floating = [tensor for tensor in tensors if tensor.is_floating_point()] or [fake((4,))]
    agree(ATEN._foreach_div.Scalar, floating[0], floating, 4)
    agree(ATEN._foreach_mul.Scalar, floating[0], floating, 0.25)


def test_slices_and_transposes() -> None:
    whole = fake((8, 4))
    with MODE:
        rows, columns, turned = whole[2:6], whole[:, 1:3], whole.t()
    for part in (rows, columns, turned):
        agree(ATEN.reshape.default, whole, part, [-1])
        agree(C10D.all_reduce.default, whole, part, "sum", "0")
    agree(ATEN.split_with_sizes.default, whole, columns, [1, 1], 1)
    agree(ATEN.reshape.default, whole, columns, [4, 2, 2])


def test_other_devices() -> None:
    with MODE:
        x = torch.empty(4, 4, device="cuda")
    agree(ATEN.reshape.default, x, x, [-1])


@pytest.mark.parametrize(
    ("target", "make"),
    [
        (ATEN.reshape.default, lambda: (fake((4, 4)), [3, -1])),
        (ATEN.split_with_sizes.default, lambda: (fake((4,)), [1, 1])),
        (ATEN.reshape.default, lambda: (torch.empty(4), [-1])),
        (ATEN.reshape.default, lambda: (fake((4,)), [GraphBuilder().symbol("s", 4)])),
        (ATEN.add.Tensor, lambda: (fake((4,)), 1)),
        (ATEN._foreach_div.Scalar, lambda: ([fake((4,), torch.int64)], 4)),
        (ATEN.div.Tensor, lambda: (fake((4,), torch.int64), 4)),
        (ATEN.mul.Tensor, lambda: (fake((4,)), fake((4,)))),
        (ATEN._foreach_mul.Scalar, lambda: ([fake((4,))], 4j)),
    ],
)
def test_what_is_not_plain_is_left_to_the_dispatcher(target: Any, make: Any) -> None:
    assert quick_value(target, make(), {}, MODE) is NotImplemented


def test_pipelined_operators() -> None:
    shard, other, bias = fake((2, 3, 4)), fake((4, 5)), fake((5,))
    ours, f32 = torch.ops.counterpoint, torch.float32
    gather = ([other], [bias], [f32], 1, True, 1, 2, "0", True)
    agree(ours.all_gather_matmul.default, shard, shard, *gather)
    agree(ours.matmul_reduce_scatter.default, shard, [shard], [other], None, "sum", 0, 1, 2, "0", None)
    agree(ours.matmul_all_reduce.default, shard, [shard], [other], bias, "avg", 1, "0", torch.bfloat16)
    agree(ours.all_to_all_matmul.default, shard, shard, [other], [None], [f32], 1, 2, "0", False)
    agree(ours.matmul_all_to_all.default, shard, [shard], [other], bias, 1, 2, "0", None)


def test_a_pipelined_operator_that_does_not_fit_is_left_to_the_dispatcher() -> None:
    call = ([fake((3, 4))], [fake((5, 4))], None, "max", 0, 1, 2, "0", None)
    assert quick_value(torch.ops.counterpoint.matmul_reduce_scatter.default, call, {}, MODE) is NotImplemented


def test_an_element_of_a_list_is_that_element() -> None:
    parts = [fake((2,)), fake((3,))]
    assert quick_value(operator.getitem, (parts, 1), {}, MODE) is parts[1]


@given(shapes, dtypes)
def test_the_quick_record_of_a_tensor_is_torchs_own(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from torch.fx.passes.shape_prop import _extract_tensor_metadata

    for value in (fake(shape, dtype), fake((4, 4), dtype).t()):
        assert tensor_metadata(value) == _extract_tensor_metadata(value)
