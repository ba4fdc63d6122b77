"""Exposed time is told collective by collective, and sums to what the simulation found."""

from __future__ import annotations

import pytest

from counterpoint.report.prediction import exposed_by_origin
from counterpoint.sim.timeline import Bounds, Span, Timeline
from tests.support.timelines import gradients, prediction


def test_the_parts_sum_to_the_whole_before_and_after() -> None:
    found = prediction(gradients())
    entries = found.report.ledger.entries
    assert found.before.exposed_us > found.after.exposed_us > 0
    for timeline, parts in (
        (found.before, [entry.facts.exposed_before_us or 0.0 for entry in entries]),
        (found.after, [entry.exposed_after_us or 0.0 for entry in entries]),
    ):
        assert sum(parts) == pytest.approx(sum(span.exposed_us for span in timeline.collectives))
        assert all(part > 0 for part in parts)


def test_without_passes_nothing_changes() -> None:
    found = prediction(gradients(), passes="")
    assert found.before.step_us == found.after.step_us
    assert all(entry.facts.exposed_before_us == entry.exposed_after_us for entry in found.report.ledger)


@pytest.mark.parametrize(
    ("sizes", "shares"), [({"a": 3.0, "b": 1.0}, {"a": 7.5, "b": 2.5}), ({}, {"a": 5.0, "b": 5.0})]
)
def test_a_bucket_is_shared_out_by_bytes(sizes: dict[str, float], shares: dict[str, float]) -> None:
    span = Span(lane="group 0", name="n", start_us=0, end_us=20, kind="all_reduce", exposed_us=10.0, origin=("a", "b"))
    bounds = Bounds(compute_us=0, channels_us={}, critical_path_us=0)
    timeline = Timeline(spans=(span,), memory=(), step_us=20, compute_us=10, exposed_us=10, peak_bytes=0, bounds=bounds)
    assert exposed_by_origin(timeline, sizes) == shares
