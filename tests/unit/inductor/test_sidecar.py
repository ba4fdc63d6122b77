"""Kept reports: whole or not there at all, and never believed when damaged or of other code."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest

from counterpoint.inductor.sidecar import load, sidecar_path, store

CONTENT = {"reports": [{"ledger": [1, 2, 3]}], "problems": []}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return sidecar_path("fabcdef", "def call(): ...")


def test_what_was_stored_comes_back(path: Path) -> None:
    store(path, "me", CONTENT)
    assert load(path, "me") == CONTENT


def test_it_lies_in_the_cache_folder_of_inductor(path: Path, tmp_path: Path) -> None:
    assert tmp_path in path.parents


def test_artefacts_of_one_key_have_reports_of_their_own(path: Path) -> None:
    assert sidecar_path("fabcdef", "def call(): return 1") != path


def test_a_missing_one_is_none_and_no_reason_to_complain(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(path, "me") is None
    assert caplog.messages == []


def test_one_of_other_code_is_none(path: Path) -> None:
    store(path, "me", CONTENT)
    assert load(path, "somebody else") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "not json at all",
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace("3]", "4]"),
        lambda text: "\x00" * 64,
    ],
    ids=["empty", "cut", "text", "list", "no fields", "altered", "zeros"],
)
def test_a_damaged_one_is_none_and_says_so(path: Path, damage: object, caplog: pytest.LogCaptureFixture) -> None:
    store(path, "me", CONTENT)
    path.write_text(damage(path.read_text()))  # type: ignore[operator]
    with caplog.at_level(logging.WARNING, logger="counterpoint"):
        assert load(path, "me") is None
    assert "damaged" in caplog.text


def test_one_of_another_format_is_none(path: Path) -> None:
    store(path, "me", CONTENT)
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"format": 999}))
    assert load(path, "me") is None


def test_readers_never_see_half_a_file(path: Path) -> None:
    store(path, "me", CONTENT)
    stop, seen = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            seen.append(load(path, "me"))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        store(path, "me", {**CONTENT, "number": number})
    stop.set()
    reader.join()
    assert seen
    assert None not in seen


def test_a_folder_that_cannot_be_written_costs_the_report_only(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "counterpoint").write_text("a file where the folder should be")
    store(path, "me", CONTENT)
    assert "could not keep the report" in caplog.text
