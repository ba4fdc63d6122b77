"""The report of a pipeline as JSON, and back. Field names are stable within a schema version."""

from __future__ import annotations

import json

from counterpoint.errors import CounterpointError
from counterpoint.passes.report import PipelineReport


def report_to_json(report: PipelineReport) -> str:
    """The report as indented JSON."""
    return json.dumps(report.to_data(), indent=2, allow_nan=False)


def report_from_json(text: str, source: str = "report") -> PipelineReport:
    """The report of a JSON text."""
    try:
        return PipelineReport.from_data(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise CounterpointError(
            f"this is not the report of a pipeline: {type(error).__name__}: {error}",
            where=source,
            next_step="write it with counterpoint opt --json",
        ) from error
