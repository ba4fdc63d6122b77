"""The passes of a run as a table: how each ended, how long it took, what it changed."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from counterpoint.passes.report import PassRecord, PassStatus, PipelineReport
from counterpoint.report.ledger_text import new_table

_STYLES = {PassStatus.DONE: "green", PassStatus.FAILED: "red", PassStatus.SKIPPED: "yellow"}


def run_view(report: PipelineReport, *, plain: bool = False) -> RenderableType:
    """What the passes did, and what went wrong."""
    if not report.passes:
        shown: RenderableType = Text("No pass was run.")
    else:
        table = new_table(plain)
        for heading in ("pass", "ended"):
            table.add_column(heading, overflow="fold")
        for heading in ("time", "verified in"):
            table.add_column(heading, justify="right")
        for heading in ("collectives", "edits", "calls"):
            table.add_column(heading, overflow="fold")
        for record in report.passes:
            table.add_row(*_cells(record, plain))
        shown = table
    troubles = [*report.problems, *report.notes]
    return Group(shown, *(Text(trouble, style="" if plain else "red") for trouble in troubles))


def _cells(record: PassRecord, plain: bool) -> list[RenderableType]:
    ended = Text(record.status.value, style="" if plain else _STYLES[record.status])
    if record.status is PassStatus.SKIPPED:
        return [Text(record.text), ended, "", "", "", Text(record.problem)]
    before, after = record.collectives_before, record.collectives_after
    return [
        Text(record.text),
        ended,
        f"{1e3 * record.seconds:.1f} ms",
        f"{1e3 * record.verify_seconds:.1f} ms",
        str(before) if before == after else f"{before} to {after}",
        Text(counts_text(record.edits) or "none"),
        Text(", ".join(f"{_short(name)} {count:+d}" for name, count in record.operators.items()) or "same"),
    ]


def counts_text(counts: Mapping[str, int]) -> str:
    """`inserted 3, erased 2`; sorts that did not occur are left out."""
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def _short(operator: str) -> str:
    return operator.removesuffix(".default").removeprefix("_c10d_functional.")
