"""Colours for a person, none where NO_COLOR asks for none or a program reads."""

from __future__ import annotations

import io

import pytest
from rich.text import Text

from counterpoint.cli.terminal import Progress, show


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", stream)
    show(lambda plain: Text("words", style="" if plain else "red"))
    return stream.getvalue()


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[31m" in shown(Terminal(), monkeypatch)


def test_no_color_takes_them_away(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[31m" not in shown(Terminal(), monkeypatch, NO_COLOR="1")


def test_what_is_piped_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(io.StringIO(), monkeypatch) == "words\n"


def test_progress_is_lines_in_a_log_and_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        progress.stage("capturing")
        progress.note("took long")
        for step in range(1, 31):
            progress.step(step, 30, 1.0)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[:3] == ["capturing", "  took long", "  step 1 of 30, loss 1.0000"]
    assert len(captured.err.splitlines()) == 6
