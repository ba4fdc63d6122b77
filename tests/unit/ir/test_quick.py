"""The quick way to a fake value and the dispatcher agree, wherever the quick way answers."""

import operator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoint._torch import FakeTensorMode, tensor_metadata
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


def agree(target: Any, source: torch.Tensor, *args: Any) -> bool:
    """Compare both ways; whether the quick way answered."""
    given_args = args if args and args[0] is not None else args[1:]
    quick = quick_value(target, given_args, {}, MODE)
    if quick is NotImplemented:
        return False
    with MODE:
        slow = target(*given_args)
    assert facts(quick, source) == facts(slow, source)
    return True


shapes = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool])


@given(shapes, dtypes, st.integers(0, 2))
def test_reshape_and_view(shape: tuple[int, ...], dtype: torch.dtype, keep: int) -> None:
    x = fake(shape, dtype)
    answered = agree(ATEN.reshape.default, x, x, [*shape[:keep], -1])
    assert answered == (x.numel() > 0)
    agree(ATEN.view.default, x, x, [x.numel()])


@given(shapes, st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 2))
def test_cat_and_split(shape: tuple[int, ...], lengths: list[int], dim: int) -> None:
    dim = min(dim, len(shape) - 1)
    parts = [fake((*shape[:dim], length, *shape[dim + 1 :])) for length in lengths]
    assert agree(ATEN.cat.default, parts[0], parts, dim)
    whole = fake((*shape[:dim], sum(lengths), *shape[dim + 1 :]))
    assert agree(ATEN.split_with_sizes.default, whole, whole, lengths, dim)


@given(shapes, dtypes)
def test_collectives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, rows = fake(shape, dtype), fake((shape[0] * 4, *shape[1:]), dtype)
    assert agree(C10D.all_reduce.default, x, x, "sum", "0")
    assert agree(C10D.wait_tensor.default, x, x)
    assert agree(C10D.all_gather_into_tensor.default, x, x, 4, "0")
    assert agree(C10D.reduce_scatter_tensor.default, rows, rows, "sum", 4, "0")


def test_a_slice_keeps_its_place_in_the_storage() -> None:
    whole = fake((8, 4))
    with MODE:
        part = whole[2:6]
    assert agree(ATEN.reshape.default, whole, part, [-1])
    assert agree(ATEN.split_with_sizes.default, whole, part, [1, 3])


@pytest.mark.parametrize(
    ("target", "make"),
    [
        (ATEN.reshape.default, lambda: (fake((4, 4)).t(), [-1])),
        (ATEN.reshape.default, lambda: (fake((4, 4)), [3, -1])),
        (ATEN.cat.default, lambda: ([fake((4,)), fake((4,), torch.int64)],)),
        (ATEN.split_with_sizes.default, lambda: (fake((4,)), [1, 1])),
        (C10D.all_gather_into_tensor.default, lambda: (fake(()), 4, "0")),
        (ATEN.add.Tensor, lambda: (fake((4,)), 1)),
    ],
)
def test_what_is_not_simple_is_left_to_the_dispatcher(target: Any, make: Any) -> None:
    with MODE:
        args = make()
    assert quick_value(target, args, {}, MODE) is NotImplemented


def test_an_element_of_a_list_is_that_element() -> None:
    parts = [fake((2,)), fake((3,))]
    assert quick_value(operator.getitem, (parts, 1), {}, MODE) is parts[1]


@given(shapes, dtypes)
def test_the_quick_record_of_a_tensor_is_torchs_own(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from torch.fx.passes.shape_prop import _extract_tensor_metadata

    for value in (fake(shape, dtype), fake((4, 4), dtype).t()):
        assert tensor_metadata(value) == _extract_tensor_metadata(value)
