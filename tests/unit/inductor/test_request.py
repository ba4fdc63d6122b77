"""Options of the call: ours checked, inductor's passed through, mistakes refused with the near names."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint.errors import OptionError
from counterpoint.inductor.request import read_request


@pytest.fixture(autouse=True)
def _no_other_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_ours_and_inductors_are_told_apart() -> None:
    request = read_request({"verify": "full", "max_autotune": True, "triton.cudagraphs": False}, None)
    assert request.options.verify == "full"
    assert dict(request.torch_settings) == {"max_autotune": True, "triton.cudagraphs": False}


def test_without_options_there_are_the_defaults() -> None:
    request = read_request(None, None)
    assert request.options.codegen == "inductor"
    assert not request.torch_settings
    assert not request.chose("codegen")


def test_hyphens_will_do() -> None:
    request = read_request({"on-error": "raise", "max-autotune": True}, None)
    assert request.options.on_error == "raise"
    assert dict(request.torch_settings) == {"max_autotune": True}


def test_a_choice_is_told_from_a_default() -> None:
    assert read_request({"codegen": "inductor"}, None).chose("codegen")


def test_a_mode_means_what_it_means_to_inductor() -> None:
    request = read_request(None, "max-autotune-no-cudagraphs")
    assert request.torch_settings["max_autotune"] is True


def test_a_mode_can_stand_beside_options() -> None:
    request = read_request({"mode": "max-autotune-no-cudagraphs", "verify": "off"}, None)
    assert request.torch_settings["max_autotune"] is True
    assert request.options.verify == "off"


@pytest.mark.parametrize(
    ("key", "near"),
    [("verfy", "'verify'"), ("code_gen", "'codegen'"), ("max_autotun", "'max_autotune'"), ("bit-wise", "'bitwise'")],
)
def test_an_unknown_option_is_refused_with_the_near_names(key: str, near: str) -> None:
    with pytest.raises(OptionError, match="unknown option") as caught:
        read_request({key: True}, None)
    assert near in str(caught.value)


def test_an_option_like_no_other_is_refused_with_all_of_ours() -> None:
    with pytest.raises(OptionError, match=r"codegen.*verify"):
        read_request({"zzzzzzzz": 1}, None)


@pytest.mark.parametrize("key", ["os", "__name__", "patch", "triton"])
def test_names_of_the_config_module_that_are_no_settings_are_refused(key: str) -> None:
    with pytest.raises(OptionError, match="unknown option"):
        read_request({key: 1}, None)


def test_a_wrong_type_for_inductor_is_our_error_too() -> None:
    with pytest.raises(OptionError, match="max_autotune"):
        read_request({"max_autotune": "very much"}, None)


def test_a_wrong_value_for_ours_names_the_choices() -> None:
    with pytest.raises(OptionError, match="paranoid"):
        read_request({"verify": "a lot"}, None)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(OptionError, match="fastest"):
        read_request(None, "fastest")
