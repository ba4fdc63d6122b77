"""Strict options are failures that name the collective and the reason, and nothing else fails."""

from __future__ import annotations

from typing import Any

import pytest

from counterpoint.errors import RequirementError
from counterpoint.options import CompileOptions
from counterpoint.passes.ledger import Entry, Facts, Ledger, Verdict, VerdictKind
from counterpoint.passes.report import PipelineReport
from counterpoint.report.requirements import check_requirements

BUCKET, PIPELINE = "bucket-all-gather{cap-mb=25}", "micro-pipeline-tp"


def left(code: str, by: str = BUCKET) -> Verdict:
    return Verdict(kind=VerdictKind.LEFT_ALONE, by=by, code=code, blocking="add_3", hint=f"change {code}")


def done(kind: VerdictKind, by: str = BUCKET) -> Verdict:
    return Verdict(kind=kind, by=by, partner="x")


def report(*histories: tuple[Verdict, ...], kind: str = "all_gather", exposed: float | None = 10.0) -> PipelineReport:
    entries = tuple(
        Entry(
            facts=Facts(origin=f"forward/{kind}#{n}", kind=kind, operator="op", node="n", source="me.py:3 in f"),
            verdict=history[-1] if history else left("no-pass", by=""),
            history=history,
            exposed_after_us=exposed,
        )
        for n, history in enumerate(histories)
    )
    return PipelineReport(
        graph="forward", pipeline="", options="", passes=(), ledger=Ledger(entries), collectives_before=len(entries),
        collectives_after=len(entries), seconds=0.0,
    )  # fmt: skip


def check(found: PipelineReport | None, **options: Any) -> str:
    """What is wrong, or nothing."""
    try:
        reports = [found] if found is not None else []
        check_requirements(reports, CompileOptions(**options), graph="0/0 forward", collectives=2)
    except RequirementError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "history",
    [
        (done(VerdictKind.BUCKETED),),
        (done(VerdictKind.BUCKETED), done(VerdictKind.LOWERED, "lower")),
        (left("no-matmul", PIPELINE), done(VerdictKind.FUSED)),
        (done(VerdictKind.PIPELINED, PIPELINE), left("bucket-form")),
        (done(VerdictKind.HIDDEN),),
        (left("no-partner"),),
        (left("bucket-full"), done(VerdictKind.LOWERED, "lower")),
    ],
)
def test_what_is_bucketed_or_alone_is_as_required(history: tuple[Verdict, ...]) -> None:
    assert check(report(history), require_bucketed=True) == ""


@pytest.mark.parametrize(
    ("history", "code"),
    [
        ((left("merge-cycle"),), "merge-cycle"),
        ((left("merge-cycle"), done(VerdictKind.LOWERED, "lower")), "merge-cycle"),
        ((left("no-pass", by=""),), "no-pass"),
        ((), "no-pass"),
    ],
)
def test_what_could_share_a_bucket_and_does_not_is_a_failure(history: tuple[Verdict, ...], code: str) -> None:
    said = check(report((done(VerdictKind.BUCKETED),), history), require_bucketed=True)
    assert "1 collective is not bucketed, as require_bucketed asks: forward/all_gather#1 (" + code in said
    assert "me.py:3 in f" in said
    assert "[graph 0/0 forward]" in said
    assert "next step: " in said


def test_kinds_that_no_pass_buckets_are_not_asked_for() -> None:
    assert check(report((left("no-pass", by=""),), kind="broadcast"), require_bucketed=True) == ""


@pytest.mark.parametrize(
    "history",
    [
        (done(VerdictKind.PIPELINED, PIPELINE), done(VerdictKind.LOWERED, "lower")),
        (left("no-matmul", PIPELINE), done(VerdictKind.BUCKETED)),
        (left("hidden-anyway", PIPELINE),),
    ],
)
def test_what_is_pipelined_or_would_gain_nothing_is_as_required(history: tuple[Verdict, ...]) -> None:
    assert check(report(history), require_pipelined=True) == ""


@pytest.mark.parametrize(
    ("history", "code"), [((left("matmul-form", PIPELINE),), "matmul-form"), ((done(VerdictKind.BUCKETED),), "no-pass")]
)
def test_what_could_be_pipelined_and_is_not_is_a_failure(history: tuple[Verdict, ...], code: str) -> None:
    said = check(report(history), require_pipelined=True)
    assert f"not pipelined, as require_pipelined asks: forward/all_gather#0 ({code}" in said


def test_many_are_counted_and_few_named() -> None:
    said = check(report(*[(left("merge-cycle"),)] * 9), require_bucketed=True)
    assert "9 collectives are not bucketed" in said
    assert "and 4 more" in said
    assert "all_gather#5" not in said


def test_exposed_time_has_a_limit() -> None:
    found = report((done(VerdictKind.BUCKETED),), (done(VerdictKind.BUCKETED),))
    assert check(found, max_exposed_us=20.0) == ""
    assert "20 us of communication is exposed, max_exposed_us allows 19.5 us" in check(found, max_exposed_us=19.5)


def test_what_is_not_known_is_a_failure_only_where_it_is_asked_for() -> None:
    found = report((done(VerdictKind.BUCKETED),), exposed=None)
    assert "could not be simulated" in check(found, max_exposed_us=1e9)
    assert "nobody knows what became of 2 collectives" in check(None, require_bucketed=True)
    assert check(None) == check(found) == check(report((left("merge-cycle"),))) == ""
