"""Options are declared once; checking, text form, environment and pyproject follow from that."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoint.errors import OptionError
from counterpoint.options import CompileOptions, described, effective, fields_from_text, fields_text, option
from counterpoint.options.fields import normalise


class Mode(Enum):
    CONCAT = "concat"
    COALESCED = "coalesced"


@dataclass(frozen=True, kw_only=True)
class Sample:
    cap_mb: float = option(25.0, help="size", unit="MB", minimum=0, maximum=4096)
    count: int = option(1, help="count", minimum=1)
    mode: Mode = option(Mode.CONCAT, help="how")
    label: str = option("", help="any text")
    caps: tuple[float, ...] = option((), help="caps")
    words: tuple[str, ...] = option((), help="words")
    limit: int | None = option(None, help="limit")
    nickname: str | None = option(None, help="name")
    strict: bool = option(False, help="strict")

    def __post_init__(self) -> None:
        normalise(self, "Sample")


def parsed(text: str) -> Sample:
    return Sample(**fields_from_text(Sample, text, "test"))


def test_defaults_have_an_empty_text_and_the_full_text_names_every_option() -> None:
    assert CompileOptions().text() == ""
    assert CompileOptions().text(defaults=True) == (
        "codegen=inductor passes=none verify=structural lower=true bitwise=false on-error=continue "
        "latency-us=none bandwidth-gbps=none topology=none cost-table=none "
        "require-bucketed=false require-pipelined=false max-exposed-us=none agreement-s=600"
    )


@given(
    st.builds(
        Sample,
        cap_mb=st.floats(0, 4096),
        count=st.integers(1, 10**12),
        mode=st.sampled_from(Mode),
        label=st.text(max_size=20),
        caps=st.lists(st.floats(allow_nan=False), max_size=4).map(tuple),
        words=st.lists(st.text(max_size=8), max_size=4).map(tuple),
        limit=st.none() | st.integers(),
        nickname=st.none() | st.text(max_size=8),
        strict=st.booleans(),
    )
)
def test_text_form_round_trips_for_every_type(sample: Sample) -> None:
    assert parsed(fields_text(sample)) == sample
    assert parsed(fields_text(sample, defaults=True)) == sample


def test_a_text_that_looks_like_none_is_not_none() -> None:
    assert fields_text(Sample(nickname="none")) == 'nickname="none"'
    assert parsed("nickname=none").nickname is None


def test_canonical_text_is_short_and_kebab() -> None:
    assert fields_text(Sample(cap_mb=25.5, caps=(1, 25))) == "cap-mb=25.5 caps=1,25"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cap-mb=-1", "expected a number from 0 to 4096 MB"),
        ("count=1.5", "expected a whole number of at least 1"),
        ("strict=perhaps", "expected true or false"),
        ("mode=concatt", "did you mean 'concat'"),
        ("cap_mbs=3", "did you mean 'cap_mb'"),
        ("count=2 count=3", "given twice"),
        ("count", "name=value"),
        ('label="open', "name=value"),
        ("caps=1,,2", "cannot be '1,,2'|cannot be ''"),
        ("cap-mb=nan", "cannot be nan"),
    ],
)
def test_wrong_text_is_refused_with_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parsed(text)


def test_python_values_are_checked_as_text_is() -> None:
    with pytest.raises(OptionError, match="at least 1"):
        Sample(count=0)
    with pytest.raises(OptionError, match="whole number"):
        Sample(count=True)
    with pytest.raises(OptionError, match="a list"):
        Sample(words="one")  # type: ignore[arg-type]
    assert Sample(cap_mb=3, caps=[1]).caps == (1.0,)  # type: ignore[arg-type]


def test_a_type_without_text_form_cannot_be_an_option() -> None:
    @dataclass(frozen=True)
    class Wrong:
        table: dict[str, int] = option(None, help="")

    with pytest.raises(OptionError, match="cannot have the type"):
        described(Wrong)


def test_unknown_option_names_the_near_ones_and_the_source() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'verfy'.*\[my call\]\n.*'verify'"):
        CompileOptions.from_mapping({"verfy": "off"}, source="my call")


def test_every_option_has_help() -> None:
    assert all(info.help for info in described(CompileOptions).values())


def test_call_beats_environment_beats_project_beats_default(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.counterpoint]\nverify = "off"\non-error = "raise"\ncodegen = "eager"\n'
    )
    inner = tmp_path / "deep" / "er"
    inner.mkdir(parents=True)
    found = effective(
        {"verify": "full"},
        environ={"COUNTERPOINT_VERIFY": "paranoid", "COUNTERPOINT_CODEGEN": "inductor"},
        directory=inner,
    )
    assert found.options == CompileOptions(verify="full", codegen="inductor", on_error="raise")
    by_name = {setting.name: setting for setting in found.settings}
    verify, codegen, on_error = (by_name[name] for name in ("verify", "codegen", "on_error"))
    assert verify.source == "options"
    assert [value for _, value in verify.overridden] == ["paranoid", "off"]
    assert codegen.source == "environment variable COUNTERPOINT_CODEGEN"
    assert on_error.source.startswith("[tool.counterpoint] of ")
    assert str(verify).startswith("verify=full from options; instead of paranoid from environment")


def test_unset_means_default(tmp_path: Path) -> None:
    found = effective(environ={}, directory=tmp_path)
    assert {s.source for s in found.settings if s.value is not None} <= {"default"}


def test_bad_values_of_the_environment_name_the_variable(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="environment variable COUNTERPOINT_BITWISE"):
        effective(environ={"COUNTERPOINT_BITWISE": "perhaps"}, directory=tmp_path)


def test_unknown_variables_are_logged_with_near_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="counterpoint"):
        effective(environ={"COUNTERPOINT_VERFY": "off"}, directory=tmp_path)
    assert "COUNTERPOINT_VERFY is not an option" in caplog.text
    assert "'verify'" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[tool.counterpoint]\nverfy = "off"\n', "unknown option 'verfy'"),
        ("[tool.counterpoint]\nbitwise = 1\n", "expected true or false"),
        ("[tool.counterpoint\n", "not valid TOML"),
        ("[tool]\ncounterpoint = 3\n", "not a table"),
    ],
)
def test_bad_project_tables_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(content)
    with pytest.raises(OptionError, match=message):
        effective(environ={}, directory=tmp_path)
