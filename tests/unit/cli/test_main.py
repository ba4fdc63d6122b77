"""The command line as a whole: fast where no torch is needed, documented, and its surface frozen."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from counterpoint.cli import main

COMMANDS = {"bench", "calibrate", "completion", "demo", "doctor", "explain", "opt", "plan", "tunnel"}


def flags(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_the_flags_are_these() -> None:
    assert set(main.commands) == COMMANDS
    assert flags(main) == {"--debug", "--version"}
    assert flags(main.commands["opt"]) == {
        *("file", "--passes", "--verify", "--bitwise", "--no-bitwise", "--on-error", "--output", "-o"),
        *(
            "--json",
            "--graph",
            "--no-graph",
            "--by-module",
            "--list-passes",
            "--topology",
            "--cost-table",
            "--write-plan",
        ),
    }
    assert flags(main.commands["explain"]) == {
        *("target", "--world-size", "--parallel", "--topology", "--passes", "--verify", "--bitwise", "--no-bitwise"),
        *("--cost-table", "--every", "--json", "--html", "--trace", "--fail-if"),
    }
    assert flags(main.commands["calibrate"]) == {
        *(
            "--output",
            "-o",
            "--from-trace",
            "--graph",
            "--codegen",
            "--mesh",
            "--max-mb",
            "--repeats",
            "--backend",
            "--topology",
        ),
    }
    assert flags(main.commands["plan"]) == {
        *("target", "--world-size", "--parallel", "--topology", "--passes", "--bitwise", "--no-bitwise"),
        *("--cost-table", "--sweep", "--plot", "--json"),
    }
    assert flags(main.commands["doctor"]) == {"--json", "--backend", "--within-s"}
    assert flags(main.commands["tunnel"]) == {
        *("script", "arguments", "--world-size", "--rank", "--topology", "--cost-table", "--latency-us"),
        *("--bandwidth-gbps", "--contention-sms"),
    }
    assert flags(main.commands["bench"]) == {"names", "--full", "--list"}
    assert flags(main.commands["completion"]) == {"shell"}
    assert flags(main.commands["demo"]) == {"--steps", "--way", "--codegen", "--passes", "--verify", "--output"}


@pytest.mark.parametrize("arguments", [[], *([name] for name in sorted(COMMANDS))])
def test_help_has_examples(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, [*arguments, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert "counterpoint " in result.output.partition("Examples:")[2]


def test_the_help_names_the_exit_codes_and_where_options_come_from() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    for part in ("Exit codes: 0", "130 interrupted", "COUNTERPOINT_*", "[tool.counterpoint]", "COUNTERPOINT_LOGS"):
        assert part in output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_given_a_script(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_COUNTERPOINT_COMPLETE" in result.output


def test_commands_flags_and_values_are_completed() -> None:
    def completed(words: str, number: int) -> list[str]:
        variables = {"COMP_WORDS": words, "COMP_CWORD": str(number), "_COUNTERPOINT_COMPLETE": "bash_complete"}
        environment = {**os.environ, **variables}
        code = (
            "import sys; sys.argv = ['counterpoint']; from counterpoint.cli import main; main(prog_name='counterpoint')"
        )
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return [line.partition(",")[2] for line in done.stdout.split()]

    assert completed("counterpoint ex", 1) == ["explain"]
    assert completed("counterpoint explain --verify pa", 3) == ["paranoid"]


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output.startswith("counterpoint, version ")


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "counterpoint", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("counterpoint, version ")


def test_help_does_not_load_torch() -> None:
    code = "import sys, counterpoint.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
