"""A pass is a frozen dataclass with a text form; its options are checked wherever they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from counterpoint.errors import OptionError, PassError
from counterpoint.options import option
from counterpoint.passes.base import Pass, PassContext


@dataclass(frozen=True, kw_only=True)
class BucketSomething(Pass):
    """Buckets something."""

    name: ClassVar[str] = "bucket-something"

    cap_mb: float = option(25.0, help="largest bucket", unit="MB", minimum=0)
    mode: str = option("concat", help="how", choices=("concat", "coalesced"))

    def run(self, context: PassContext) -> None:
        raise NotImplementedError


def test_text_form_leaves_defaults_out() -> None:
    assert BucketSomething().text == "bucket-something"
    assert BucketSomething(cap_mb=100).text == "bucket-something{cap-mb=100}"
    assert str(BucketSomething(mode="coalesced", cap_mb=1.5)) == "bucket-something{cap-mb=1.5 mode=coalesced}"


def test_equal_options_make_equal_passes() -> None:
    assert BucketSomething.from_text("cap-mb=25") == BucketSomething(cap_mb=25)
    assert hash(BucketSomething(cap_mb=25)) == hash(BucketSomething())


def test_errors_name_the_pass_the_option_and_near_names() -> None:
    with pytest.raises(OptionError, match=r"'cap_m'.*\[pass bucket-something\]\n.*'cap_mb'"):
        BucketSomething.from_text("cap-m=3")
    with pytest.raises(OptionError, match=r"'cap_mb' cannot be -1.*at least 0 MB \[pass bucket-something\]"):
        BucketSomething(cap_mb=-1)
    with pytest.raises(OptionError, match="did you mean 'concat'"):
        BucketSomething.from_text("mode=concta")


def test_a_name_that_is_not_kebab_case_is_refused() -> None:
    with pytest.raises(PassError, match="words-with-hyphens"):

        class Wrong(Pass):
            name: ClassVar[str] = "Bucket_Something"


def test_a_pass_that_forgot_the_decorator_is_refused() -> None:
    class Forgot(BucketSomething):
        name: ClassVar[str] = "forgot-something"

    with pytest.raises(PassError, match="decorate it"):
        Forgot()
