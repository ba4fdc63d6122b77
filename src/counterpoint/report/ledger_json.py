"""Reports of pipelines as JSON, and back. Field names are stable within a schema version."""

from __future__ import annotations

import json
from collections.abc import Sequence

from counterpoint.errors import CounterpointError
from counterpoint.passes.ledger import SCHEMA
from counterpoint.passes.report import PipelineReport


def reports_to_json(reports: Sequence[PipelineReport]) -> str:
    """The reports, one for each graph, as indented JSON."""
    return json.dumps({"schema": SCHEMA, "graphs": [report.to_data() for report in reports]}, indent=2, allow_nan=False)


def reports_from_json(text: str, source: str = "report") -> list[PipelineReport]:
    """The reports of a JSON text."""
    try:
        return [PipelineReport.from_data(data) for data in json.loads(text)["graphs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CounterpointError(
            f"this is not the report of a pipeline: {type(error).__name__}: {error}",
            where=source,
            next_step="write it with counterpoint opt --json",
        ) from error
