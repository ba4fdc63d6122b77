"""What the strict options require of a compile, asked of its ledgers: `require_bucketed` and its like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from counterpoint.errors import RequirementError
from counterpoint.ir.ops import Kind
from counterpoint.ir.reason import REASONS
from counterpoint.options import CompileOptions
from counterpoint.passes.ledger import Entry, Verdict, VerdictKind
from counterpoint.passes.report import PipelineReport
from counterpoint.report.words import time_text

SHOWN = 5
"""Collectives that one message names."""

BUCKETED_KINDS = frozenset(
    kind.value for kind in (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL)
)
BUCKETED = frozenset(
    {
        VerdictKind.BUCKETED,
        VerdictKind.FUSED,
        VerdictKind.PIPELINED,
        VerdictKind.DEDUPLICATED,
        VerdictKind.HIDDEN,
    }
)
"""Verdicts after which nobody asks for a bucket any more."""
NOTHING_TO_BUCKET = frozenset({"no-partner", "bucket-full"})
"""Reasons of collectives that are alone, or large enough by themselves."""

PIPELINED_KINDS = frozenset(kind.value for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER))
PIPELINING = "micro-pipeline-tp"
NOTHING_TO_PIPELINE = frozenset(
    {"no-matmul", "no-product", "gather-form", "scatter-form", "matmul-taken", "hidden-anyway", "too-small"}
)
"""Reasons of collectives beside no matmul, or which would gain nothing."""


@dataclass(frozen=True, kw_only=True)
class _Missed:
    entry: Entry
    verdict: Verdict | None
    """Why; None where no pass has said anything."""

    @property
    def code(self) -> str:
        return self.verdict.code if self.verdict is not None else "no-pass"

    @property
    def hint(self) -> str:
        given = self.verdict.hint if self.verdict is not None else ""
        return given or REASONS[self.code].hint

    def __str__(self) -> str:
        facts = self.entry.facts
        at = f" at {self.verdict.blocking}" if self.verdict is not None and self.verdict.blocking else ""
        source = f", {facts.source}" if facts.source else ""
        return f"{facts.origin} ({self.code}{at}{source})"


def check_requirements(
    reports: Sequence[PipelineReport], options: CompileOptions, *, graph: str, collectives: int
) -> None:
    """RequirementError unless one compiled graph is as the options require.

    collectives: how many the graph has, by somebody else's count: a graph without a report cannot be judged.
    """
    if not (options.require_bucketed or options.require_pipelined or options.max_exposed_us is not None):
        return
    if collectives and not reports:
        raise RequirementError(
            f"nobody knows what became of {collectives} collectives, because the passes did not run",
            where=f"graph {graph}",
            next_step="see the problems in counterpoint.reports()",
        )
    entries = [entry for report in reports for entry in report.ledger]
    if options.require_bucketed:
        _raise_for(_missed(entries, not_bucketed), "not bucketed, as require_bucketed asks", graph)
    if options.require_pipelined:
        _raise_for(_missed(entries, not_pipelined), "not pipelined, as require_pipelined asks", graph)
    if options.max_exposed_us is not None:
        _check_exposed(entries, options.max_exposed_us, graph)


def _missed(entries: Iterable[Entry], judge: Callable[[Entry], _Missed | None]) -> list[_Missed]:
    return [missed for missed in map(judge, entries) if missed is not None]


def not_bucketed(entry: Entry) -> _Missed | None:
    """Why a collective that could share a bucket does not; None where it does, or there is nothing to share with."""
    if entry.facts.kind not in BUCKETED_KINDS or any(verdict.kind in BUCKETED for verdict in entry.history):
        return None
    refusals = list(_refusals(entry))
    if any(verdict.code in NOTHING_TO_BUCKET for verdict in refusals):
        return None
    return _Missed(entry=entry, verdict=refusals[-1] if refusals else None)


def not_pipelined(entry: Entry) -> _Missed | None:
    """Why a gather or scatter beside a matmul is not pipelined with it; None where it is, or would gain nothing."""
    if any(verdict.kind is VerdictKind.PIPELINED for verdict in entry.history):
        return None
    refusals = [verdict for verdict in _refusals(entry) if verdict.by.startswith(PIPELINING)]
    if not refusals:
        return _Missed(entry=entry, verdict=None) if entry.facts.kind in PIPELINED_KINDS else None
    if any(verdict.code in NOTHING_TO_PIPELINE for verdict in refusals):
        return None
    return _Missed(entry=entry, verdict=refusals[-1])


def _refusals(entry: Entry) -> Iterator[Verdict]:
    return (verdict for verdict in entry.history if verdict.kind is VerdictKind.LEFT_ALONE)


def _raise_for(missed: Sequence[_Missed], what: str, graph: str) -> None:
    if missed:
        more = f" and {len(missed) - SHOWN} more" if len(missed) > SHOWN else ""
        are = "collective is" if len(missed) == 1 else "collectives are"
        raise RequirementError(
            f"{len(missed)} {are} {what}: {', '.join(map(str, missed[:SHOWN]))}{more}",
            where=f"graph {graph}",
            next_step=missed[0].hint,
        )


def _check_exposed(entries: Sequence[Entry], most_us: float, graph: str) -> None:
    if any(entry.exposed_after_us is None for entry in entries):
        raise RequirementError(
            "the exposed time is not known, because the graph could not be simulated",
            where=f"graph {graph}",
            next_step="see the problems in counterpoint.reports()",
        )
    exposed_us = sum(entry.exposed_after_us or 0.0 for entry in entries)
    if exposed_us > most_us:
        worst = sorted(entries, key=lambda entry: -(entry.exposed_after_us or 0.0))[:SHOWN]
        names = ", ".join(f"{entry.facts.origin} {time_text(entry.exposed_after_us)}" for entry in worst)
        raise RequirementError(
            f"{time_text(exposed_us)} of communication is exposed, max_exposed_us allows {time_text(most_us)}: {names}",
            where=f"graph {graph}",
            next_step="counterpoint explain shows what would hide it",
        )
