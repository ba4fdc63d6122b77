"""Running the passes on a graph of torch's so that a fault of ours can never break or change a compile."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace

import torch
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Graph, GraphModule

from counterpoint.cost.capabilities import CapabilityTable
from counterpoint.errors import ContractError, GroupError, OptionError
from counterpoint.inductor.faults import save_fault
from counterpoint.inductor.plan import Plan
from counterpoint.ir import ops
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.launches import Launch, launches_of
from counterpoint.ir.reason import Refusal
from counterpoint.passes.book import LedgerBook
from counterpoint.passes.pipeline import count_collectives, run_pipeline
from counterpoint.passes.report import PipelineReport
from counterpoint.passes.restore import SavedGraph
from counterpoint.report.prediction import with_exposure
from counterpoint.sim.simulator import simulate
from counterpoint.sim.timeline import Timeline

LOGGER = logging.getLogger("counterpoint.faults")

USER_ERRORS = (OptionError, ContractError, GroupError)
"""What was asked for is wrong: these fail the compile. Anything else is our fault and must not."""


@dataclass
class PassRun:
    """What came of running the passes on one compiled graph and the graphs it calls."""

    name: str
    reports: list[PipelineReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The collectives that the compiled graph starts."""
        return tuple(launch for report in self.reports for launch in report.launches)

    def next_name(self) -> str:
        """The name of the next graph in the ledger: `forward`, then `forward.1` for a second one."""
        return f"{self.name}.{len(self.reports)}" if self.reports else self.name


def run_guarded(
    graph: Graph, plan: Plan, groups: GroupTable, run: PassRun, capabilities: CapabilityTable | None = None
) -> None:
    """Run the passes on a graph, in place. After a fault the graph is as it was, and report and log say so."""
    if not any(ops.is_collective(node) for node in graph.nodes):
        return
    started = time.perf_counter()
    owner = graph.owning_module
    gm = owner if owner is not None else GraphModule(torch.nn.Module(), graph)
    _sort(graph)
    for node in graph.nodes:
        # AOT autograd's forward and backward share these dictionaries; what passes note in one is not for the other.
        node.meta = dict(node.meta)
    before = _simulated(gm, plan, groups, run, mark=True)
    # Without passes nothing can change, and copying a large graph takes seconds.
    saved = SavedGraph(gm) if plan.pipeline.passes else None
    try:
        report = run_pipeline(
            gm,
            plan.pipeline,
            options=plan.options,
            groups=groups,
            name=run.next_name(),
            topology=plan.cost_model.links,
            cost_model=plan.cost_model,
            capabilities=capabilities if capabilities is not None else CapabilityTable(),
            # Whoever compiles the graph does that when the last pass has run.
            recompile=False,
        )
    except Exception as error:
        if isinstance(error, USER_ERRORS) or plan.options.on_error == "raise":
            raise
        if saved is not None:
            saved.restore()
        report = _report_untouched(gm, plan, groups, run, error)
        LOGGER.error("our passes failed; the graph is compiled as it was", exc_info=error)
    after = _simulated(gm, plan, groups, run) if before is not None else None
    if before is not None and after is not None:
        report = replace(report, ledger=with_exposure(report.ledger, before, after))
    report = replace(report, launches=launches_of(gm.graph))
    run.reports.append(report)
    run.problems.extend(report.problems)
    if report.problems:
        run.problems.append(save_fault(gm, saved.graph if saved is not None else graph, groups, report))
    run.seconds += time.perf_counter() - started


def _simulated(gm: GraphModule, plan: Plan, groups: GroupTable, run: PassRun, *, mark: bool = False) -> Timeline | None:
    """The step as it is now, where somebody cares: a cluster is described, or exposed time has a limit.

    A prediction never fails a compile; that there is none is a problem, and fails what requires it.
    """
    if plan.options.max_exposed_us is None and not plan.cost_model.is_informed:
        return None
    try:
        if mark:
            # Collectives get their names in the ledger, as the run of the passes will give them again.
            LedgerBook.open(gm.graph, run.next_name(), groups)
        return simulate(gm, plan.cost_model, groups, places=False)
    except Exception as error:
        LOGGER.warning("the exposed time of a graph cannot be predicted", exc_info=error)
        run.problems.append(f"the exposed time cannot be predicted: {type(error).__name__}: {error}")
        return None


def _sort(graph: Graph) -> None:
    """Torch's own passes, and a user's, may leave a graph in an order that is not one of execution."""
    seen = set()
    for node in graph.nodes:
        if any(source not in seen for source in node.all_input_nodes):
            stable_topological_sort(graph)
            return
        seen.add(node)


def _report_untouched(
    gm: GraphModule, plan: Plan, groups: GroupTable, run: PassRun, error: Exception
) -> PipelineReport:
    name, what = run.next_name(), f"{type(error).__name__}: {error}"
    count = count_collectives(gm.graph)
    ledger = LedgerBook.open(gm.graph, name, groups).close(Refusal("pass-failed", name, what))
    return PipelineReport(
        graph=name,
        pipeline=plan.pipeline.text,
        options=plan.options.text(),
        passes=(),
        ledger=ledger,
        collectives_before=count,
        collectives_after=count,
        seconds=0.0,
        input_problem=what,
    )
