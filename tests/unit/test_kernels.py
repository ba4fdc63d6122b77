"""Kernels of our operators get element types as torch has them, whichever way a torch version hands them over."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from counterpoint._torch import register_fake_kernel, register_kernel

BF16_NUMBER = 15
"""c10::ScalarType::BFloat16."""

SCHEMA = "(Tensor x, ScalarType[] dtypes, int count, ScalarType? out_dtype=None) -> Tensor[]"


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What torch was given to register."""
    given: list[Any] = []
    monkeypatch.setattr(torch.library, "impl", lambda _name, _key, kernel: given.append(kernel))
    monkeypatch.setattr(torch.library, "register_fake", lambda _name, kernel: given.append(kernel))
    return given


@pytest.mark.parametrize("register", [register_kernel, register_fake_kernel])
def test_numbers_become_element_types(register: Any, handed_over: list[Any]) -> None:
    def kernel(x: str, dtypes: Any, count: int, out_dtype: Any = None) -> tuple[Any, ...]:
        return x, dtypes, count, out_dtype

    register("counterpoint::never_defined", kernel)
    (registered,) = handed_over
    expected = ("x", [torch.bfloat16, torch.float32], BF16_NUMBER, torch.bfloat16)
    assert registered("x", [BF16_NUMBER, torch.float32], BF16_NUMBER, out_dtype=BF16_NUMBER) == expected
    assert registered("x", dtypes=[], count=1) == ("x", [], 1, None)


def test_kernels_without_element_types_are_left_alone(handed_over: list[Any]) -> None:
    def kernel(x: str, count: int) -> str:
        return x * count

    register_kernel("counterpoint::never_defined", kernel)
    assert handed_over == [kernel]


def test_operators_hand_over_element_types() -> None:
    seen: list[Any] = []

    def kernel(x: torch.Tensor, dtypes: Any, count: int, out_dtype: Any = None) -> list[torch.Tensor]:
        seen.append((dtypes, out_dtype))
        return [x.clone()] * count

    library = torch.library.Library("counterpoint_test_kernels", "DEF")
    library.define(f"typed{SCHEMA}")
    register_kernel("counterpoint_test_kernels::typed", kernel)
    operator = torch.ops.counterpoint_test_kernels.typed.default
    operator(torch.ones(1), [torch.bfloat16], 1, out_dtype=torch.float16)
    operator(torch.ones(1), [], 1)
    assert seen == [([torch.bfloat16], torch.float16), ([], None)]
