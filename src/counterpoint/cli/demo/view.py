"""What the demo shows: of each way of training the ledger of its graphs, and one table of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from counterpoint.cli.demo.command import TOLERANCE, WORLD_SIZE, difference
from counterpoint.cli.explain.explanation import Explanation
from counterpoint.passes.report import PipelineReport
from counterpoint.report.ledger_text import bytes_text, ledger_view, new_table
from counterpoint.report.words import time_text


def outcome_view(outcome: dict[str, Any], plain: bool) -> RenderableType:
    """Losses, times, and the ledger of every compiled graph."""
    heading = "" if plain else "bold"
    parts: list[RenderableType] = [
        Text(f"\n{outcome['way']}, code generation: {', '.join(outcome['codegen'])}\n", style=heading),
        _courses(outcome, plain),
        *(Text(problem, style="" if plain else "red") for problem in outcome["problems"]),
    ]
    for report in map(PipelineReport.from_data, outcome["reports"]):
        parts += [Text(f"\nLedger of graph {report.graph}\n", style=heading), ledger_view(report.ledger, plain=plain)]
    return Group(*parts)


def _courses(outcome: dict[str, Any], plain: bool) -> RenderableType:
    table = new_table(plain)
    table.add_column("training")
    for heading in ("first loss", "last loss", "first step", "later steps"):
        table.add_column(heading, justify="right")
    rows = {"eager, torch": "eager", "compiled, no passes": "before", "compiled, counterpoint": "after"}
    for name, course in ((name, outcome[key]) for name, key in rows.items()):
        table.add_row(
            name,
            f"{course.losses[0]:.6f}",
            f"{course.losses[-1]:.6f}",
            f"{course.first_step_s:.1f} s",
            f"{course.step_ms:.1f} ms",
        )
    before, after = (outcome[key].step_ms for key in ("before", "after"))
    return Group(
        table,
        Text(f"our passes: a step of {before:.1f} ms takes {after:.1f} ms, {before / after:.1f} times as fast"),
        Text(f"largest difference of a loss: {difference(outcome):.1e}"),
    )


def summary_view(outcomes: Sequence[dict[str, Any]], predicted: Explanation, plain: bool) -> RenderableType:
    """One line a way: what the passes did to it, and what that is worth."""
    table = new_table(plain)
    table.add_column("trained with")
    for heading in (
        "collectives",
        "sent a step",
        "exposed, predicted",
        "eager",
        "compiled",
        "with passes",
        "same loss",
    ):
        table.add_column(heading, justify="right")
    for outcome, graph in zip(outcomes, predicted.graphs, strict=True):
        reports = [PipelineReport.from_data(data) for data in outcome["reports"]]
        before, after = (sum(getattr(one, f"collectives_{when}") for one in reports) for when in ("before", "after"))
        sent = sum(entry.facts.nbytes or 0 for one in reports for entry in one.ledger)
        exposed = (time_text(run.exposed_us) for run in (graph.prediction.before, graph.prediction.after))
        times = (f"{outcome[key].step_ms:.1f} ms" for key in ("eager", "before", "after"))
        same = difference(outcome)
        loss = Text(f"yes, to {same:.0e}" if same <= TOLERANCE else f"NO, off by {same:.0e}")
        if not plain:
            loss.stylize("green" if same <= TOLERANCE else "bold red")
        table.add_row(outcome["way"], f"{before} to {after}", bytes_text(sent), " to ".join(exposed), *times, loss)
    title = f"{WORLD_SIZE} processes on gloo: what the passes did, per step of training"
    return Group(Text(f"\n{title}\n", style="" if plain else "bold"), table, Text(""))
