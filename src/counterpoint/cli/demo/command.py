"""The command."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from counterpoint.cli.compile_flags import compile_flags, given
from counterpoint.cli.terminal import Progress, show

if TYPE_CHECKING:
    from collections.abc import Sequence

WORLD_SIZE = 2
STEPS = 30
TOLERANCE = 1e-3
"""Largest difference of a loss that counts as the same: code generation may round differently, and steps add up."""

EPILOG = """\b
Examples:
  counterpoint demo
  counterpoint demo --codegen eager --steps 10"""


@click.command(epilog=EPILOG)
@click.option("--steps", type=click.IntRange(min=2), default=STEPS, show_default=True, help="Train that long.")
@click.option(
    "--way",
    "ways",
    type=click.Choice(["replicate", "fully_shard"]),
    multiple=True,
    help="Train in this way only; may be given twice.  [default: both]",
)
@compile_flags("codegen", "passes", "verify")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/demo"),
    show_default=True,
    help="Save the graphs there.",
)
@click.pass_context
def demo(ctx: click.Context, /, steps: int, ways: Sequence[str], output: Path, **flags: Any) -> None:
    """Train a small transformer on two processes, and show what became of its collectives.

    It is trained eagerly as torch does it, then compiled by us without our passes and with them, on the same data: the
    losses must be the same. Needs no GPU and no network. Compiles for a minute or two; Ctrl-C ends everything.
    """
    from counterpoint.cli.demo.view import outcome_view

    began = time.perf_counter()
    chosen = tuple(ways) or ("replicate", "fully_shard")
    outcomes = _train(chosen, steps, given(flags))
    for outcome in outcomes:
        show(functools.partial(outcome_view, outcome))
    saved = _save_graphs(chosen, output)
    click.echo(f"Saved {len(saved)} graphs; look at one with:  counterpoint opt {saved[0]}")
    click.echo(f"All in {time.perf_counter() - began:.0f} s.")
    different = [outcome["way"] for outcome in outcomes if difference(outcome) > TOLERANCE]
    if different:
        click.echo(f"The losses differ from eager: {', '.join(different)}", err=True)
    ctx.exit(1 if different else 0)


def difference(outcome: dict[str, Any]) -> float:
    """How far the losses of the compiled training are from those of the eager one, at most."""
    eager = outcome["eager"].losses
    return float(
        max(abs(a - b) for key in ("before", "after") for a, b in zip(eager, outcome[key].losses, strict=True))
    )


def _save_graphs(ways: Sequence[str], folder: Path) -> list[Path]:
    """One train step of each way as a graph, captured in a pretended world of the same size."""
    from counterpoint.capture.example_models import next_token_loss
    from counterpoint.capture.file import save_graph
    from counterpoint.capture.step import capture_step
    from counterpoint.capture.world import fake_world
    from counterpoint.cli.demo.training import WAYS, example_batch, fresh_model

    folder.mkdir(parents=True, exist_ok=True)
    saved: list[Path] = []
    for way in ways:
        with fake_world(WORLD_SIZE):
            model = WAYS[way][1](fresh_model())
            captured = capture_step(model, next_token_loss, example_batch(), name=way)
            saved.append(folder / f"{way}.graph")
            save_graph(saved[-1], captured)
    return saved


def _train(ways: tuple[str, ...], steps: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    with Progress() as progress, tempfile.TemporaryDirectory(prefix="counterpoint-demo-") as folder:
        progress.stage(f"starting {WORLD_SIZE} processes")
        from counterpoint.cli.demo.processes import processes
        from counterpoint.cli.demo.training import Settings, train

        settings = Settings(os.path.join(folder, "store"), ways, steps, options)
        environment = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        outcomes: list[dict[str, Any]] = []
        with processes(functools.partial(train, settings), WORLD_SIZE, environment) as messages:
            for message in messages:
                if message.rank != 0:
                    continue
                if message.kind == "stage":
                    progress.stage(message.data)
                elif message.kind == "step":
                    progress.step(**message.data)
                else:
                    outcomes.append(message.data)
        return outcomes
