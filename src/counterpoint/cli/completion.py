"""`counterpoint completion`: the script that lets a shell complete commands, flags and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

EXAMPLES = """\b
Examples:
  eval "$(counterpoint completion bash)"          for this shell; add it to ~/.bashrc for all
  eval "$(counterpoint completion zsh)"           likewise, ~/.zshrc
  counterpoint completion fish > ~/.config/fish/completions/counterpoint.fish"""


@click.command(epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Write the completion script of a SHELL."""
    from counterpoint.cli.main import main

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this version of click cannot complete for {shell}")
    click.echo(kind(main, {}, "counterpoint", "_COUNTERPOINT_COMPLETE").source())
