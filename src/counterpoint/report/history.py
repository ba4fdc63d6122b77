"""What has been compiled in this process: one record per compiled graph, the newest last, a bounded number kept.

Records are plain data: they hold no graph, no node and no tensor, so keeping them costs little and pins nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from counterpoint.passes.ledger import Ledger
from counterpoint.passes.report import PipelineReport

LOGGER = logging.getLogger("counterpoint.compile")
LEDGER_LOGGER = logging.getLogger("counterpoint.ledger")
KEPT = 1024
"""Records kept at most; older ones are dropped. A large training job compiles some tens of graphs."""


@dataclass(frozen=True, kw_only=True)
class CompileRecord:
    """What was asked for, what was done and what is in force for one compiled graph."""

    graph: str
    """Name of the graph: dynamo's compile id and the role, `0/0 forward`. Unique together with `number`."""
    role: str
    """`forward`, `backward` or `inference`."""
    collectives: int
    """Collectives of the graph as the compiler handed it over."""
    origin: str
    """Where the reports come from: `run` (the passes ran now), `stored` (kept beside a cache entry), `recomputed`
    (the passes ran again on a copy of the graph, because the stored report was missing or damaged) or `none`."""
    cache: str
    """`hit`, `miss` or `bypass` of the FX graph cache; `off` where there is none."""
    requested: str
    """The options of the call, as the user gave them."""
    in_force: Mapping[str, str]
    """What is really in effect, by name: code generator, fences and so on."""
    problems: tuple[str, ...] = ()
    """What went wrong without failing the compile, in words."""
    reports: tuple[PipelineReport, ...] = ()
    """One `PipelineReport` per (sub)graph that the passes saw; empty where no collective is."""
    compile_s: float = 0.0
    """Wall seconds of compiling this graph, passes and code generation together."""
    passes_s: float = 0.0
    """Wall seconds of our passes, verification included."""
    number: int = field(default=0)
    """Rising number of the record in this process."""

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """The ledgers of all reports."""
        return tuple(report.ledger for report in self.reports)

    def __str__(self) -> str:
        accounted = ", ".join(str(ledger) for ledger in self.ledgers) or "nothing to account for"
        text = (
            f"graph {self.graph}: {self.collectives} collectives, {accounted} (report: {self.origin}, "
            f"cache: {self.cache}, {self.compile_s:.1f} s, of which passes {self.passes_s:.2f} s)"
        )
        return "; ".join([text, *self.problems])

    def in_full(self) -> str:
        """The record with what was asked for and what is in force, a line each, whether it was compiled or cached."""
        settings = (f"  {name}: {value}" for name, value in self.in_force.items())
        return "\n".join([str(self), f"  requested: {self.requested or 'nothing'}", *settings])


class History:
    """A bounded, thread-safe list of records."""

    def __init__(self, kept: int = KEPT) -> None:
        self._records: deque[CompileRecord] = deque(maxlen=kept)
        self._numbers = count(1)
        self._lock = threading.Lock()

    def add(self, record: CompileRecord) -> CompileRecord:
        """Number the record, keep it and log one line about it."""
        with self._lock:
            numbered = replace(record, number=next(self._numbers), in_force=dict(record.in_force))
            self._records.append(numbered)
        LOGGER.info("%s", numbered)
        LOGGER.debug("%s", numbered.in_full())
        for entry in (entry for ledger in numbered.ledgers for entry in ledger):
            LEDGER_LOGGER.debug("graph %s: %s: %s", numbered.graph, entry.facts.origin, entry.verdict)
        for ledger in numbered.ledgers:
            LEDGER_LOGGER.info("graph %s: %s", numbered.graph, ledger)
        return numbered

    def records(self) -> tuple[CompileRecord, ...]:
        """All records kept, oldest first."""
        with self._lock:
            return tuple(self._records)

    def clear(self) -> None:
        """Forget all records. Numbers go on rising."""
        with self._lock:
            self._records.clear()


HISTORY = History()
"""The records of this process. It outlives `torch._dynamo.reset()`."""


def reports() -> tuple[CompileRecord, ...]:
    """What the backend has compiled in this process: one record per graph, oldest first."""
    return HISTORY.records()


def clear_reports() -> None:
    """Forget what was compiled so far, to look at one model alone."""
    HISTORY.clear()
