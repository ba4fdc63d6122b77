"""`counterpoint bench`: the project's benchmarks, on this machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from counterpoint.cli.terminal import show
from counterpoint.errors import CounterpointError

DISTRIBUTION = "counterpoint-compiler"
RUNNER = "benchmarks/run.py"
CHECKOUT = Path(__file__).resolve().parents[3]

EXAMPLES = """\b
Examples:
  counterpoint bench --list
  counterpoint bench simulator shared
  counterpoint bench step --full

\b
A benchmark prints a table with the peer beside us, measured in the same run. Quick sizes take seconds to a few minutes
each, full ones longer; nothing else should run on the machine meanwhile."""


@click.command(epilog=EXAMPLES)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--full", is_flag=True, help="The sizes of the documentation: minutes, where quick ones take seconds.")
@click.option("--list", "only_list", is_flag=True, help="List the benchmarks, and stop.")
@click.pass_context
def bench(ctx: click.Context, /, names: Sequence[str], full: bool, only_list: bool) -> None:
    """Run the benchmarks whose names hold one of NAME, or all of them, each in a process of its own."""
    folder = benchmark_folder()
    found = described(folder)
    chosen = {name: text for name, text in found.items() if not names or any(part in name for part in names)}
    if not chosen:
        raise click.UsageError(f"no benchmark is called like {', '.join(names)}; there are {', '.join(found)}")
    if only_list:
        from counterpoint.report.ledger_text import new_table

        table = new_table(plain=not sys.stdout.isatty())
        table.add_column("benchmark", no_wrap=True)
        table.add_column("what it measures", overflow="fold")
        for name, text in chosen.items():
            table.add_row(name, text)
        show(lambda _: table)
        return
    ctx.exit(run(folder, list(chosen) if names else [], full))


def benchmark_folder() -> Path:
    """Where the benchmarks lie: beside the sources in a checkout, else where the installed package has put them."""
    beside = CHECKOUT / RUNNER
    if beside.is_file():
        return beside.parent
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.as_posix().endswith(RUNNER):
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path.parent
    raise CounterpointError(
        "the benchmarks are not installed with this package",
        where=str(CHECKOUT),
        next_step=f"pip install {DISTRIBUTION} from a wheel or a checkout, or run make bench in a checkout",
    )


def described(folder: Path) -> dict[str, str]:
    """The benchmarks by name, each with the first sentence of what it says of itself."""
    return {path.stem.removeprefix("bench_"): _first_sentence(path) for path in sorted(folder.glob("bench_*.py"))}


def _first_sentence(path: Path) -> str:
    import ast

    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def run(folder: Path, names: Sequence[str], full: bool) -> int:
    """Run them; their tables go straight to the terminal. The exit code is that of the runner.

    Nothing that they start outlives this call, however it ends.
    """
    command = [sys.executable, str(folder / Path(RUNNER).name), *names, *(["--full"] if full else [])]
    # Scripts of a checkout also use what lies beside `benchmarks`.
    path = os.pathsep.join(filter(None, [str(folder.parent), os.environ.get("PYTHONPATH", "")]))
    # A group of its own, which Ctrl-C does not reach: it is ended from here, with all that it has started.
    child = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, start_new_session=True)
    with _ending_on_terminate():
        try:
            return child.wait()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@contextlib.contextmanager
def _ending_on_terminate() -> Iterator[None]:
    """Let a polite request to end unwind like Ctrl-C does."""

    def end(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
