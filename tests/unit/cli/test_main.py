"""The command line as a whole: fast where no torch is needed, documented, and its surface frozen."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from counterpoint.cli import main


def flags(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_the_flags_are_these() -> None:
    assert set(main.commands) == {"calibrate", "demo", "explain", "opt", "plan"}
    assert flags(main) == {"--debug", "--version"}
    assert flags(main.commands["opt"]) == {
        *("file", "--passes", "--verify", "--bitwise", "--no-bitwise", "--on-error", "--output", "-o"),
        *("--json", "--graph", "--no-graph", "--by-module", "--list-passes", "--topology", "--cost-table"),
    }
    assert flags(main.commands["explain"]) == {
        *("target", "--world-size", "--parallel", "--topology", "--passes", "--verify", "--bitwise", "--no-bitwise"),
        *("--cost-table", "--every", "--json", "--html", "--trace", "--fail-if"),
    }
    assert flags(main.commands["calibrate"]) == {
        *("--output", "-o", "--from-trace", "--graph", "--mesh", "--max-mb", "--repeats", "--backend", "--topology"),
    }
    assert flags(main.commands["plan"]) == {
        *("target", "--world-size", "--parallel", "--topology", "--passes", "--bitwise", "--no-bitwise"),
        *("--cost-table", "--sweep", "--plot", "--json"),
    }
    assert flags(main.commands["demo"]) == {"--steps", "--way", "--codegen", "--passes", "--verify", "--output"}


@pytest.mark.parametrize("arguments", [[], ["opt"], ["demo"], ["explain"], ["plan"], ["calibrate"]])
def test_help_has_examples_and_exit_codes(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, [*arguments, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output or "Exit codes:" in result.output


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output.startswith("counterpoint, version ")


def test_help_does_not_load_torch() -> None:
    code = "import sys, counterpoint.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
