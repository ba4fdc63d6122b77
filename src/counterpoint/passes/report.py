"""What a run of a pipeline did: plain data that can be stored beside a compiled graph and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from counterpoint.ir.launches import Launch
from counterpoint.passes.ledger import Ledger, known_fields


class PassStatus(Enum):
    """How a pass of a run ended."""

    DONE = "done"
    FAILED = "failed"
    """It raised or did not verify, and was undone."""
    SKIPPED = "skipped"
    """It was not run."""


@dataclass(frozen=True, kw_only=True)
class PassRecord:
    """One pass of a run."""

    text: str
    """The pass with its options."""
    status: PassStatus
    problem: str = ""
    """Why it failed or was skipped."""
    seconds: float = 0.0
    """Wall time of the pass itself, for reading only: nothing is decided by it."""
    verify_seconds: float = 0.0
    edits: Mapping[str, int] = field(default_factory=dict)
    """Edits by sort, those of undone rewrites left out."""
    operators: Mapping[str, int] = field(default_factory=dict)
    """By how many calls each operator's number has changed."""
    collectives_before: int = 0
    collectives_after: int = 0
    plan: str = ""
    """What it decided, as text that it can be given back; empty for passes that need none."""


@dataclass(frozen=True, kw_only=True)
class PipelineReport:
    """One run of a pipeline on one graph."""

    graph: str
    pipeline: str
    options: str
    passes: tuple[PassRecord, ...]
    ledger: Ledger
    collectives_before: int
    collectives_after: int
    seconds: float
    input_problem: str = ""
    """Why the input graph was refused, in which case no pass has run."""
    notes: tuple[str, ...] = ()
    """What could not be checked at the level asked for, and why."""
    launches: tuple[Launch, ...] = ()
    """The collectives that the graph starts afterwards, for ranks to compare."""

    @property
    def plan(self) -> str:
        """What the passes decided, as the text of a file of plans."""
        return "\n".join(record.plan for record in self.passes if record.plan)

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that went wrong, in words."""
        failed = (f"{r.text}: {r.problem}" for r in self.passes if r.status is PassStatus.FAILED)
        return ((self.input_problem,) if self.input_problem else ()) + tuple(failed)

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON. The ledger's part carries the version of the schema."""
        return {
            "graph": self.graph,
            "pipeline": self.pipeline,
            "options": self.options,
            "passes": [_record_to_data(record) for record in self.passes],
            "collectives_before": self.collectives_before,
            "collectives_after": self.collectives_after,
            "seconds": self.seconds,
            "input_problem": self.input_problem,
            "notes": list(self.notes),
            "launches": [launch.to_data() for launch in self.launches],
            "ledger": self.ledger.to_data(),
        }

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> PipelineReport:
        """The report of plain data."""
        changed = {
            "passes": tuple(_record_from_data(item) for item in data["passes"]),
            "notes": tuple(data["notes"]),
            "launches": tuple(map(Launch.from_data, data.get("launches", ()))),
            "ledger": Ledger.from_data(data["ledger"]),
        }
        return PipelineReport(**known_fields(PipelineReport, data) | changed)


def _record_to_data(record: PassRecord) -> dict[str, Any]:
    return asdict(record) | {"status": record.status.value}


def _record_from_data(data: Mapping[str, Any]) -> PassRecord:
    return PassRecord(**{**known_fields(PassRecord, data), "status": PassStatus(data["status"])})
