"""Times and verdicts in words, as all reports write them."""

from __future__ import annotations

from counterpoint.ir.reason import REASONS
from counterpoint.passes.ledger import Entry, Verdict, VerdictKind


def time_text(us: float | None) -> str:
    """A time for reading: 12.5 us, 3.25 ms, 1.2 s; a question mark for one that is not known."""
    if us is None:
        return "?"
    for size, unit in ((1e6, "s"), (1e3, "ms")):
        if abs(us) >= size:
            return f"{us / size:.4g} {unit}"
    # Nothing is known to a hundredth of a microsecond.
    return f"{us:.4g} us" if abs(us) >= 100 else f"{round(us, 1):g} us"


def why_text(verdict: Verdict) -> str:
    """Why a collective was left alone, in words; empty for any other verdict."""
    if verdict.kind is not VerdictKind.LEFT_ALONE:
        return ""
    meaning = REASONS[verdict.code].meaning if verdict.code in REASONS else verdict.code
    return f"{meaning} ({verdict.detail})" if verdict.detail else meaning


def blocking_text(entry: Entry) -> str:
    """The node in the way and the user's line that made it; empty where it is the collective itself."""
    verdict = entry.verdict
    if not verdict.blocking or verdict.blocking == entry.facts.node:
        return ""
    return f"{verdict.blocking}, {verdict.blocking_source}" if verdict.blocking_source else verdict.blocking
