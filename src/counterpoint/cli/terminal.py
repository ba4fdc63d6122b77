"""Writing to the terminal: colours and lines where a person looks, plain text where a program reads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from rich.console import Console
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
