"""The command."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from counterpoint.cli.compile_flags import compile_flags, given
from counterpoint.cli.targets import write_file
from counterpoint.cli.terminal import Progress, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from counterpoint.capture.graph import CapturedGraph
    from counterpoint.cli.explain.explanation import Explanation

WORLD_SIZE = 2
WAYS = ("replicate", "fully_shard", "tensor_parallel")
STEPS = 30
TOLERANCE = 1e-3
"""Largest difference of a loss that counts as the same: code generation may round differently, and steps add up."""

EPILOG = """\b
Examples:
  counterpoint demo
  counterpoint demo --way fully_shard
  counterpoint demo --codegen eager --steps 10     without a C++ compiler, and quick"""


@click.command(epilog=EPILOG)
@click.option("--steps", type=click.IntRange(min=2), default=STEPS, show_default=True, help="Train that long.")
@click.option(
    "--way",
    "ways",
    type=click.Choice(WAYS),
    multiple=True,
    help="Train in this way only; may be given several times.  [default: all]",
)
@compile_flags("codegen", "passes", "verify")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/demo"),
    show_default=True,
    help="Write the timeline page and the graphs there.",
)
@click.pass_context
def demo(ctx: click.Context, /, steps: int, ways: Sequence[str], output: Path, **flags: Any) -> None:
    """Train a small transformer on two processes, and show what became of its collectives.

    Replicated, fully sharded and tensor parallel in turn; each eagerly as torch does it, then compiled by us without
    our passes and with them, on the same data: the losses must be the same. Writes the ledger of every collective, one
    table of what was gained, and a timeline page. Needs no GPU and no network. Compiles for a minute or two; Ctrl-C
    ends everything.
    """
    from counterpoint.cli.demo.view import outcome_view, summary_view
    from counterpoint.report.page import render_page

    began = time.perf_counter()
    chosen = tuple(ways) or WAYS
    trained = _train(chosen, steps, given(flags))
    predicted = _predicted(chosen, output, trained.link, given(flags))
    outcomes = trained.outcomes
    for outcome in outcomes:
        show(functools.partial(outcome_view, outcome))
    show(functools.partial(summary_view, outcomes, predicted))
    page = output / "timeline.html"
    write_file(page, render_page(predicted.views(), title="Counterpoint demo"))
    click.echo(f"Open the timeline in a browser:  {page.resolve().as_uri()}")
    click.echo(f"Look at a graph:  counterpoint explain {output / f'{chosen[0]}.graph'} --topology cpu-1g")
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


@dataclass(frozen=True)
class Trained:
    """What the processes told."""

    outcomes: list[dict[str, Any]]
    link: tuple[float, float] | None
    """Latency in microseconds and bandwidth in Gbit/s between the processes, as measured."""


def _train(ways: tuple[str, ...], steps: int, options: dict[str, Any]) -> Trained:
    with Progress() as progress, tempfile.TemporaryDirectory(prefix="counterpoint-demo-") as folder:
        progress.stage(f"starting {WORLD_SIZE} processes")
        from counterpoint.cli.demo.processes import processes
        from counterpoint.cli.demo.training import Settings, train

        settings = Settings(os.path.join(folder, "store"), ways, steps, options)
        environment = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        outcomes: list[dict[str, Any]] = []
        link: tuple[float, float] | None = None
        with processes(functools.partial(train, settings), WORLD_SIZE, environment) as messages:
            for message in messages:
                if message.rank != 0:
                    continue
                if message.kind == "stage":
                    progress.stage(message.data)
                elif message.kind == "note":
                    progress.note(message.data)
                elif message.kind == "step":
                    progress.step(**message.data)
                elif message.kind == "link":
                    link = message.data
                else:
                    outcomes.append(message.data)
        return Trained(outcomes, link)


def _predicted(
    ways: Sequence[str], folder: Path, link: tuple[float, float] | None, flags: dict[str, Any]
) -> Explanation:
    """One train step of each way as a graph, captured in a pretended world of the same size, saved, and simulated
    before and after the passes over the link that was measured."""
    from counterpoint.cli.explain.explanation import explain
    from counterpoint.options import effective

    with Progress() as progress:
        progress.stage("capturing and simulating a step of each")
        graphs = [_captured(way, folder) for way in ways]
        options = effective(flags, source="command line").options
        if link is not None and options.latency_us is None and options.bandwidth_gbps is None:
            options = replace(options, latency_us=link[0], bandwidth_gbps=link[1])
        return explain("demo", graphs, options)


def _captured(way: str, folder: Path) -> CapturedGraph:
    from counterpoint.capture.example_models import next_token_loss
    from counterpoint.capture.file import save_graph
    from counterpoint.capture.step import capture_step
    from counterpoint.capture.world import fake_world
    from counterpoint.cli.demo.training import WAYS as FOUND
    from counterpoint.cli.demo.training import example_batch, fresh_model

    folder.mkdir(parents=True, exist_ok=True)
    with fake_world(WORLD_SIZE):
        model = FOUND[way].ours(fresh_model())
        captured = capture_step(model, next_token_loss, example_batch(), name=way)
    save_graph(folder / f"{way}.graph", captured)
    return captured
