"""Findings as text: by area, what was found, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from counterpoint.cli.doctor.finding import Finding, State
from counterpoint.report.ledger_text import new_table

_MARKS = {State.WORKS: ("works", "green"), State.ABSENT: ("absent", "yellow"), State.BROKEN: ("BROKEN", "bold red")}


def findings_view(findings: Sequence[Finding], plain: bool) -> RenderableType:
    """All of them, and a line that sums up."""
    table = new_table(plain)
    table.show_header = False
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for area, members in groupby(findings, key=lambda finding: finding.area):
        table.add_row(Text(area, style="" if plain else "bold"))
        for finding in members:
            word, style = _MARKS[finding.state]
            table.add_row(f"  {finding.name}", Text(word, style="" if plain else style), finding.said)
            if finding.remedy:
                table.add_row("", "", Text(f"to do: {finding.remedy}", style="" if plain else "dim"))
    return Group(table, Text(""), Text(summary(findings)))


def summary(findings: Sequence[Finding]) -> str:
    """One sentence."""
    bad = [finding.name for finding in findings if finding.state is State.BROKEN]
    if bad:
        return f"Broken: {', '.join(bad)}."
    return "Nothing is broken. What is absent is done in another way, or not needed here."
