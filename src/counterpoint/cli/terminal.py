"""Writing to the terminal: colours and lines where a person looks, plain text where a program reads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from counterpoint.errors import CounterpointError

if TYPE_CHECKING:
    from rich.console import RenderableType


def show(view: Callable[[bool], RenderableType]) -> None:
    """Write what `view(plain)` draws to standard output. Rich itself honours NO_COLOR."""
    if sys.stdout.isatty():
        Console(file=sys.stdout).print(view(False))
    else:
        from counterpoint.report.ledger_text import plain_text

        click.echo(plain_text(view(True)), nl=False)


def show_error(error: CounterpointError) -> None:
    """One block on standard error: what, where, and the next step."""
    lines = [("error: ", error.what)]
    lines += [("where: ", error.where)] if error.where else []
    lines += [("next step: ", error.next_step)] if error.next_step else []
    console = Console(file=sys.stderr, soft_wrap=True)
    for heading, text in lines:
        console.print(Text.assemble((heading, "bold red" if heading == "error: " else "bold"), text))


class Progress:
    """What goes on, on standard error: one living line for a person, plain lines for a log."""

    def __init__(self) -> None:
        self._live: RichProgress | None = None
        self._task: TaskID | None = None
        self._title = ""

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._live = RichProgress(*columns, console=Console(file=sys.stderr))
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def stage(self, text: str) -> None:
        """Something longer has begun."""
        if self._live is None:
            click.echo(text, err=True)
            return
        if self._task is not None:
            self._live.update(self._task, total=1, completed=1)
        self._task = self._live.add_task(text, total=None)
        self._title = text

    def note(self, text: str) -> None:
        """A word on what is going on."""
        if self._live is not None:
            self._live.console.print(f"  {text}", highlight=False)
        else:
            click.echo(f"  {text}", err=True)

    def step(self, step: int, of: int, loss: float) -> None:
        """One step of training is done."""
        text = f"step {step} of {of}, loss {loss:.4f}"
        if self._live is not None and self._task is not None:
            self._live.update(self._task, description=f"{self._title}: {text}")
        elif step in (1, of) or step % max(1, of // 3) == 0:
            click.echo(f"  {text}", err=True)
