"""Timelines as columns of numbers: a page of ten thousand events stays small and opens at once."""

from __future__ import annotations

from typing import Any

from counterpoint.report.page.views import View, collective_data
from counterpoint.sim.timeline import Span, Timeline

COMPUTE, COMMUNICATION, COPY, WAIT = range(4)


class Strings:
    """Texts by number; each is written once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text; -1 for the empty one."""
        return self._numbers.setdefault(text, len(self._numbers)) if text else -1

    @property
    def texts(self) -> list[str]:
        """All texts in the order of their numbers."""
        return list(self._numbers)


def packed_view(view: View, strings: Strings) -> dict[str, Any]:
    """One view as the page reads it."""
    return {
        "name": view.name,
        "subtitle": view.subtitle,
        "runs": [packed_run(label, timeline, strings) for label, timeline in view.runs.items()],
        "collectives": [collective_data(entry) for entry in view.ledger],
    }


def packed_run(label: str, timeline: Timeline, strings: Strings) -> dict[str, Any]:
    """One timeline; lanes in the order in which they first occur, compute before all others."""
    lanes = sorted(dict.fromkeys(span.lane for span in timeline.spans), key=lambda lane: lane != "compute")
    number = {lane: position for position, lane in enumerate(lanes)}
    spans = timeline.spans
    return {
        "label": label,
        "step_us": timeline.step_us,
        "compute_us": timeline.compute_us,
        "exposed_us": timeline.exposed_us,
        "peak_bytes": timeline.peak_bytes,
        "lower_us": timeline.bounds.step_us,
        "lanes": lanes,
        "spans": {
            "lane": [number[span.lane] for span in spans],
            "sort": [_sort(span) for span in spans],
            "start": [_short(span.start_us) for span in spans],
            "end": [_short(span.end_us) for span in spans],
            "exposed": [_short(span.exposed_us) for span in spans],
            "bytes": [span.nbytes or -1 for span in spans],
            "name": [strings.number(span.name) for span in spans],
            "kind": [strings.number(span.kind) for span in spans],
            "source": [strings.number(span.source) for span in spans],
            "module": [strings.number(span.module) for span in spans],
            "origins": [[strings.number(origin) for origin in span.origin] for span in spans],
        },
        "memory": {
            "at": [_short(time_us) for time_us, _ in timeline.memory],
            "bytes": [nbytes for _, nbytes in timeline.memory],
        },
    }


def _sort(span: Span) -> int:
    if span.kind == "wait":
        return WAIT
    if span.lane == "compute":
        return COMPUTE
    return COPY if span.lane.startswith("copy") else COMMUNICATION


def _short(time_us: float) -> float:
    """A thousandth of a microsecond is finer than anything that is drawn."""
    return round(time_us, 3)
