"""What the demo shows of one way of training."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from counterpoint.cli.demo.command import difference
from counterpoint.passes.report import PipelineReport
from counterpoint.report.ledger_text import ledger_view, new_table


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
