"""Leaving one record per compiled graph."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch._dynamo.compiled_autograd
from torch._guards import CompileContext

from counterpoint.inductor.guard import PassRun
from counterpoint.inductor.plan import Plan
from counterpoint.report.history import HISTORY, CompileRecord
from counterpoint.report.requirements import check_requirements


def in_compiled_autograd() -> bool:
    """Whether the graph being compiled is a whole backward that compiled autograd captured.

    AOT autograd takes such a graph for a forward one; only this flag tells, and only while dynamo hands the graph over.
    """
    return bool(torch._dynamo.compiled_autograd.in_compiled_autograd_region)


@dataclass(frozen=True)
class Account:
    """What is known about a graph before it is compiled; closed with what came of it."""

    plan: Plan
    role: str
    collectives: int
    started: float

    @staticmethod
    def open(plan: Plan, role: str, collectives: int) -> Account:
        """Start the clock of one graph."""
        return Account(plan, role, collectives, time.perf_counter())

    def close(self, run: PassRun, *, origin: str, cache: str) -> CompileRecord:
        """Write the record; RequirementError where the graph is not as the strict options require."""
        compile_id = CompileContext.current_compile_id()
        record = HISTORY.add(
            CompileRecord(
                graph=f"{compile_id if compile_id is not None else '-'} {self.role}",
                role=self.role,
                collectives=self.collectives,
                origin=origin,
                cache=cache,
                requested=self.plan.request.text,
                in_force=self.plan.in_force,
                problems=(*self.plan.notes, *run.problems),
                reports=tuple(run.reports),
                compile_s=time.perf_counter() - self.started,
                passes_s=run.seconds,
            )
        )
        # After the record is kept, so that whoever is refused can look at it.
        check_requirements(record.reports, self.plan.options, graph=record.graph, collectives=self.collectives)
        return record
