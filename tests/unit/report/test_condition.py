"""Conditions of a user's CI: what they mean, and that nothing else can be written in them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoint.errors import OptionError
from counterpoint.report.condition import Condition

VALUES = {"exposed_us": 400.0, "step_us": 1000.0, "left_alone": 0.0}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("exposed_us > 399", True),
        ("exposed_us > 400", False),
        ("exposed_us>=400 and left_alone == 0", True),
        ("exposed_us / step_us > 0.5", False),
        ("exposed_us / step_us > 0.5 or not left_alone", True),
        ("0 < exposed_us < step_us", True),
        ("0 < exposed_us < 100", False),
        ("-exposed_us < -2 * 100 - 1.5e2", True),
        ("left_alone", False),
    ],
)
def test_conditions_mean_what_they_say(text: str, holds: bool) -> None:
    assert Condition.parse(text).holds(VALUES) is holds


@pytest.mark.parametrize(
    "text",
    [
        *("__import__('os')", "exposed_us.real", "[1][0] > 0", "(lambda: 1)()", "'a' > 'b'", "exposed_us ** 9 > 1"),
        *("exposed_us if 1 else 2", "True", "1 in [1]", "f'{step_us}'", "exposed_us // 1", "step_us < 2j", "~step_us"),
    ],
)
def test_nothing_else_can_be_written(text: str) -> None:
    with pytest.raises(OptionError, match="does not belong"):
        Condition.parse(text).holds(VALUES)


@pytest.mark.parametrize("text", ["", "exposed_us >", "exposed_us > 1; 2", "x = 1", "(" * 300, "1" * 501])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        Condition.parse(text)


def test_an_unknown_name_is_refused_wherever_it_stands() -> None:
    with pytest.raises(OptionError, match="did you mean 'exposed_us'"):
        Condition.parse("step_us > 0 or exposed > 1").holds(VALUES)
    with pytest.raises(OptionError, match="cannot be computed"):
        Condition.parse("step_us / left_alone > 1").holds(VALUES)


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_an_error_of_ours(text: str) -> None:
    with contextlib.suppress(OptionError):
        Condition.parse(text).holds(VALUES)
