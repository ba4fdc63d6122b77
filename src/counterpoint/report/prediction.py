"""What passes are predicted to gain: the step simulated before and after them, exposed time told collective by
collective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch.fx import GraphModule

from counterpoint.cost.model import CostModel
from counterpoint.ir.groups import GroupTable
from counterpoint.options import CompileOptions
from counterpoint.passes.book import LedgerBook
from counterpoint.passes.ledger import Ledger
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.passes.report import PipelineReport
from counterpoint.sim.simulator import simulate
from counterpoint.sim.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One graph, before and after the passes."""

    report: PipelineReport
    """With exposed times in its ledger."""
    before: Timeline
    after: Timeline


def predict(
    gm: GraphModule,
    pipeline: Pipeline,
    *,
    options: CompileOptions,
    groups: GroupTable,
    model: CostModel,
    name: str = "graph",
) -> Prediction:
    """Run the passes on a graph, in place, and simulate it before and after."""

    def run() -> PipelineReport:
        return run_pipeline(
            gm,
            pipeline,
            options=options,
            groups=groups,
            name=name,
            topology=model.links,
            cost_model=model,
        )

    return predicted(gm, run, groups=groups, model=model, name=name)


def predicted(
    gm: GraphModule, run: Callable[[], PipelineReport], *, groups: GroupTable, model: CostModel, name: str
) -> Prediction:
    """The same for whoever runs the passes in a way of their own."""
    # Marks every collective with its name in the ledger, as the run will do again.
    LedgerBook.open(gm.graph, name, groups)
    before = simulate(gm, model, groups, title=f"{name}, before")
    report = run()
    after = simulate(gm, model, groups, title=f"{name}, after")
    return Prediction(
        report=replace(report, ledger=with_exposure(report.ledger, before, after)), before=before, after=after
    )


def with_exposure(ledger: Ledger, before: Timeline, after: Timeline) -> Ledger:
    """The ledger with the exposed time of each collective. What a bucket exposes is shared out by bytes."""
    sizes = {entry.facts.origin: float(entry.facts.nbytes or 0) for entry in ledger}
    earlier, later = exposed_by_origin(before, sizes), exposed_by_origin(after, sizes)
    return Ledger(
        tuple(
            replace(
                entry,
                facts=replace(entry.facts, exposed_before_us=earlier.get(entry.facts.origin, 0.0)),
                exposed_after_us=later.get(entry.facts.origin, 0.0),
            )
            for entry in ledger
        )
    )


def exposed_by_origin(timeline: Timeline, sizes: Mapping[str, float]) -> dict[str, float]:
    """The exposed time of each collective of the input graph."""
    found: dict[str, float] = defaultdict(float)
    for span in timeline.collectives:
        whole = sum(sizes.get(origin, 0.0) for origin in span.origin)
        for origin in span.origin:
            share = sizes.get(origin, 0.0) / whole if whole > 0 else 1.0 / len(span.origin)
            found[origin] += span.exposed_us * share
    return dict(found)
