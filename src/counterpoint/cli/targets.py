"""What the commands about one model have in common: the target, the world, the cluster, and writing files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from counterpoint.cli.compile_flags import given
from counterpoint.errors import CounterpointError

if TYPE_CHECKING:
    from counterpoint.options import CompileOptions

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_TOPOLOGY = "h100x8-ib400"
"""The cluster that is reckoned for when nobody names one; always shown."""

TARGET_HELP = """TARGET is a saved graph, or file.py:function: a function that takes nothing, or the pretended
world, and returns `model, inputs`, or `model, loss_fn, batch`, or captured graphs."""


def target_flags(function: F) -> F:
    """TARGET, --world-size and --parallel."""
    function = click.option(
        "--parallel",
        type=click.Choice(["replicate", "fully-shard"]),
        help="Wrap the model that the function builds, if it is not parallel yet.",
    )(function)
    function = click.option(
        "--world-size", type=click.IntRange(min=1), help="Pretend so many ranks.  [default: 8, or those of the graph]"
    )(function)
    return click.argument("target")(function)


def target_options(flags: Mapping[str, Any]) -> CompileOptions:
    """The options in force, for a usual cluster where none is named."""
    from dataclasses import replace

    from counterpoint.options import effective

    options = effective(given(dict(flags)), source="command line").options
    return options if options.topology is not None else replace(options, topology=DEFAULT_TOPOLOGY)


def compile_options(flags: Mapping[str, Any]) -> CompileOptions:
    """The same, with the passes that a compile would run: a cluster that is only assumed here does not choose them."""
    from dataclasses import replace

    from counterpoint.options import effective
    from counterpoint.passes.pipeline import Pipeline

    asked = effective(given(dict(flags)), source="command line").options
    return replace(target_options(flags), passes=Pipeline.of(asked).text)


def write_file(path: Path, text: str) -> None:
    """Write a report, with its folder; an error of ours where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CounterpointError(
            f"the file cannot be written: {error.strerror}", where=str(path), next_step="name another place"
        ) from error
    click.echo(f"wrote {path}", err=True)
