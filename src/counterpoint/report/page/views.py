"""What one page shows of a graph: its timelines under each other, and the verdict on each collective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from counterpoint.passes.ledger import Entry, Ledger
from counterpoint.report.words import blocking_text, why_text
from counterpoint.sim.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class View:
    """One graph."""

    name: str
    runs: Mapping[str, Timeline]
    """By label, `before` and `after`, drawn from top to bottom on one axis of time."""
    ledger: Ledger
    subtitle: str = ""


def view_of(name: str, before: Timeline, after: Timeline, ledger: Ledger, subtitle: str = "") -> View:
    """The usual view: before and after the passes."""
    return View(name=name, runs={"before": before, "after": after}, ledger=ledger, subtitle=subtitle)


def collective_data(entry: Entry) -> dict[str, Any]:
    """What the page tells of one collective."""
    facts, verdict = entry.facts, entry.verdict
    return {
        "origin": facts.origin,
        "verdict": str(verdict),
        "why": why_text(verdict),
        "blocking": blocking_text(entry),
        "hint": verdict.hint,
        "bytes": facts.nbytes,
        "group": facts.group,
        "module": facts.module,
        "source": facts.source,
        "before_us": facts.exposed_before_us,
        "after_us": entry.exposed_after_us,
    }
