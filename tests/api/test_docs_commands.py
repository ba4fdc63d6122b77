"""The commands of the documentation are right, and what is shown of their output is what they print.

Every line of a `bash` block, and every line behind `$` in a `console` block, must be understood here: commands of ours
run, but for those that train or measure for minutes, whose arguments are only read; examples must be ones that
`test_examples.py` runs; targets must stand in the Makefile. A line that nothing understands fails.

Shown output is recorded: COUNTERPOINT_RECORD=1 has it written into the pages. It is compared without its numbers, and
may differ in some words, so that a pass that learns something does not fail the documentation at once.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from counterpoint.cli import main
from tests.api.test_docs_code import PAGES, ROOT
from tests.api.test_examples import OTHERS, TRAINED

RECORDING = "COUNTERPOINT_RECORD" in os.environ
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = {"python", "bash", "console", "toml", "text", "yaml", "", "html"}
"""What a block may be written in; the first four are checked."""
TAKE_LONG = {"demo", "bench", "calibrate", "doctor", "tunnel"}
NEED_TRANSFORMERS = "examples/huggingface.py"
SETTING_UP = {"pip", "source"}
ALIKE = 0.5
"""Part of the words of an output that must be as shown, numbers aside."""


class Command(NamedTuple):
    """One command of a page, and what the page shows of its output."""

    page: str
    line: int
    words: tuple[str, ...]
    shown: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def commands_of(text: str, page: str) -> Iterator[Command]:
    """The commands of a page's text."""
    for block in FENCE.finditer(text):
        first = text[: block.start(2)].count("\n") + 1
        if block[1] == "bash":
            for offset, line in enumerate(block[2].splitlines()):
                if line.strip() and not line.startswith("#"):
                    yield Command(page, first + offset, tuple(_without_variables(line)))
        elif block[1] == "console":
            line, _, shown = block[2].partition("\n")
            assert line.startswith("$ "), f"{page}:{first}: a console block begins with $"
            yield Command(page, first, tuple(_without_variables(line[2:])), shown)


def _without_variables(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    return words


def kind_of(command: Command) -> str:
    """How the command is checked; AssertionError where nobody knows."""
    program, *rest = command.words
    if program == "torchrun" and "--no-python" in rest:
        assert "counterpoint" in rest, f"{command}: torchrun --no-python runs something unknown"
        return "read"
    if program == "counterpoint":
        named = next((word for word in rest if not word.startswith("-")), "")
        long = named in TAKE_LONG or (named == "plan" and any("on_paper" in word for word in rest))
        long = long or any(word.startswith("out/demo/") for word in rest)  # written by the demo, which takes long
        return "read" if long or {"-h", "--help"} & {*rest} else "run"
    if program in ("torchrun", "python") or program.startswith("examples/"):
        scripts = [word for word in command.words if word.startswith("examples/")]
        known = {f"examples/{name}" for name in (*TRAINED, *OTHERS)}
        assert scripts, f"{command}: no example"
        assert {*scripts} <= known, f"{command}: no example that the tests run"
        return "example"
    if program == "make":
        targets = [word for word in rest if "=" not in word]
        missing = [target for target in targets if f"\n{target}: ##" not in (ROOT / "Makefile").read_text()]
        assert targets, f"{command}: no target"
        assert not missing, f"{command}: no target {missing}"
        return "make"
    assert program in SETTING_UP, f"{command}: nothing checks {program!r}"
    return "set up"


COMMANDS = [command for page in PAGES for command in commands_of(page.read_text(), page.relative_to(ROOT).as_posix())]


def as_case(command: Command) -> Any:
    """A case that is skipped where it needs a package that is not there."""
    missing = NEED_TRANSFORMERS in " ".join(command.words) and importlib.util.find_spec("transformers") is None
    marks = [pytest.mark.skip(reason="transformers is not installed")] if missing else []
    return pytest.param(command, marks=[*marks, pytest.mark.slow], id=str(command))


OURS = {how: [command for command in COMMANDS if kind_of(command) == how] for how in ("run", "read")}


@pytest.mark.filterwarnings("default")  # torch's, about the programs that are captured
@pytest.mark.parametrize("command", map(as_case, OURS["run"]))
def test_a_command_runs_and_prints_what_is_shown(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = output_of(command, tmp_path, monkeypatch)
    if command.shown is None:
        return
    if RECORDING:
        _record(command, printed)
    else:
        assert likeness(command.shown, printed) >= ALIKE, printed


def output_of(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command of ours prints, files named as in a checkout."""
    for name in ("examples", "out") if RECORDING else ("examples",):
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(main, list(command.words[1:]), catch_exceptions=False, prog_name="counterpoint")
    assert done.exit_code == 0, done.output
    return done.stdout.replace(f"{folder}/", "").replace(f"{ROOT}/", "")


def likeness(shown: str, printed: str) -> float:
    """How much of two outputs is the same, word by word, numbers and their units aside."""
    one, other = (re.sub(r"[-\d.]+( [um]?s| [KMGT]?i?B| %)?(?=\s)", "#", text).split() for text in (shown, printed))
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def _record(command: Command, printed: str) -> None:
    page = ROOT / command.page
    text = page.read_text()
    # Found by what it says: recording another block may have moved it.
    head, fence, rest = text.partition(f"```console\n$ {shlex.join(command.words)}\n")
    assert fence, f"{command}: write the command as a shell would quote it"
    page.write_text(head + fence + printed.rstrip("\n") + "\n```" + rest.partition("```")[2])


@pytest.mark.parametrize("command", map(as_case, OURS["read"]))
def test_the_arguments_of_a_long_command_are_understood(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if RECORDING and command.shown is not None:
        _record(command, output_of(command, tmp_path, monkeypatch))
    words = list(command.words[command.words.index("counterpoint") + 1 :])
    name, *rest = words
    _provide(rest, tmp_path, monkeypatch)
    found = main.get_command(None, name)  # type: ignore[arg-type]
    assert found is not None
    if not {"-h", "--help"} & {*rest}:
        found.make_context(name, rest, resilient_parsing=False).close()


def _provide(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that a command names: examples as they are, and empty what earlier commands would have written."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    for word in words:
        if word.startswith("out/") and not (folder / word).exists():
            (folder / word).parent.mkdir(parents=True, exist_ok=True)
            (folder / word).touch()
    monkeypatch.chdir(folder)


def test_there_is_something_to_check() -> None:
    kinds = [kind_of(command) for command in COMMANDS]
    assert {"run", "read", "example", "make"} <= {*kinds}
    assert sum(command.shown is not None for command in COMMANDS) >= 4
    assert any(command.page == "README.md" for command in COMMANDS)


def test_every_block_is_in_a_language_that_is_known() -> None:
    found = [(page.name, block[1]) for page in PAGES for block in FENCE.finditer(page.read_text())]
    assert [(page, language) for page, language in found if language not in LANGUAGES] == []


@pytest.mark.parametrize(
    "line", ["frobnicate", "make nothing", "torchrun x.py", "python examples/none.py", "torchrun --no-python ls"]
)
def test_a_line_that_nothing_checks_is_noticed(line: str) -> None:
    (command,) = commands_of(f"text\n```bash\n# a comment\n{line}\n```\n", "page")
    with pytest.raises(AssertionError, match="page:4"):
        kind_of(command)


def test_an_output_that_is_not_what_is_printed_is_noticed() -> None:
    shown = "module  bytes\na.*  3 us\nb.*  12.5 ms\n"
    assert likeness(shown, shown.replace("12.5 ms", "7 us")) == 1.0
    assert likeness(shown, "module  verdict\na.*  3 us  fused\n") > ALIKE
    assert likeness(shown, "kind  share\nc  left\nd  left\n") < ALIKE


def test_toml_of_the_documentation_is_accepted() -> None:
    from counterpoint.cost.presets import topology_from_data
    from counterpoint.options import CompileOptions
    from counterpoint.options.toml_text import parse_toml

    tables = [
        parse_toml(block[2], page.name)
        for page in PAGES
        for block in FENCE.finditer(page.read_text())
        if block[1] == "toml"
    ]
    clusters = [topology_from_data(table, "page") for table in tables if "levels" in table]
    options = [CompileOptions.from_mapping(table["tool"]["counterpoint"]) for table in tables if "tool" in table]
    assert clusters
    assert options
