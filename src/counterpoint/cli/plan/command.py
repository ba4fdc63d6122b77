"""The command."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from counterpoint.cli.compile_flags import compile_flags
from counterpoint.cli.targets import TARGET_HELP, target_flags, target_options
from counterpoint.cli.terminal import Progress, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from counterpoint.capture.graph import CapturedGraph
    from counterpoint.cli.plan.study import Study
    from counterpoint.cli.plan.sweep import Sweep
    from counterpoint.options import CompileOptions

EXAMPLES = """\b
Examples:
  counterpoint plan train.py:build --world-size 64 --topology h200x8-ib400
  counterpoint plan train.py:build --parallel fully-shard --sweep link=100..800 --plot link.svg
  counterpoint plan step.graph --sweep bucket-mb=1..256 --json"""


@click.command(
    epilog=EXAMPLES,
    help="Predict the step of a model on a cluster, with which passes, and what would make it faster.\n\n"
    "Nothing is computed and no GPU is needed: the step is captured in a pretended world and simulated.\n\n"
    + TARGET_HELP,
)
@target_flags
@compile_flags("topology", "passes", "bitwise", "cost_table")
@click.option(
    "--sweep", "sweeps", multiple=True, metavar="KNOB=LOW..HIGH", help="Vary link, bucket-mb or world-size; repeatable."
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the sweeps there, .svg or .png (matplotlib)."
)
@click.option("--json", "as_json", is_flag=True, help="Write everything as JSON, and nothing else.")
def plan(
    *,
    target: str,
    world_size: int | None,
    parallel: str | None,
    sweeps: Sequence[str],
    plot: Path | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Plan a target."""
    from counterpoint.cli.plan.plot import check_plot, draw
    from counterpoint.cli.plan.sweep import Sweep

    read = [Sweep.parse(text) for text in sweeps]
    if plot is not None:
        _check_there_is_something_to_draw(read)
        check_plot(plot)
    study = _study(target, world_size, parallel, target_options(flags), read)
    if as_json:
        click.echo(json.dumps(study.to_data(), indent=2, allow_nan=False))
    else:
        from counterpoint.cli.plan.view import study_view

        show(lambda plain: study_view(study, plain))
    if plot is not None:
        draw(plot, study.sweeps, f"{target}, {study.world_size} ranks, {study.topology.name}")
        click.echo(f"wrote {plot}", err=True)


def _study(
    target: str, world_size: int | None, parallel: str | None, options: CompileOptions, sweeps: Sequence[Sweep]
) -> Study:
    from counterpoint.capture.target import load_target
    from counterpoint.cli.plan.study import Planner

    with Progress() as progress:

        @functools.cache
        def capture(size: int | None) -> list[CapturedGraph]:
            progress.stage(f"reading {target}" + (f" at {size} ranks" if size is not None else ""))
            return load_target(target, world_size=size if size is not None else world_size, parallel=parallel)

        return Planner(target=target, options=options, capture=capture, say=progress.stage).study(sweeps)


def _check_there_is_something_to_draw(sweeps: Sequence[Sweep]) -> None:
    from counterpoint.errors import OptionError

    if not sweeps:
        raise OptionError("there is nothing to plot", where="--plot", next_step="add --sweep link=100..800")
