"""What `explain` finds out about a target: each graph before and after the passes, and the totals of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from counterpoint.capture.graph import CapturedGraph
from counterpoint.cost.model import CostModel
from counterpoint.ir.groups import GroupTable
from counterpoint.options import CompileOptions
from counterpoint.passes.ledger import SCHEMA, VerdictKind
from counterpoint.passes.pipeline import Pipeline
from counterpoint.report.page import View, view_of
from counterpoint.report.prediction import Prediction, predict
from counterpoint.sim.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One graph."""

    name: str
    captured: CapturedGraph
    """As the passes left it."""
    prediction: Prediction


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One target."""

    target: str
    graphs: tuple[Explained, ...]
    options: CompileOptions
    model: CostModel

    @property
    def setting(self) -> str:
        """For whom it holds, in a few words."""
        first = self.graphs[0].captured
        cluster = self.model.topology.name if self.model.topology is not None else f"a usual {self.model.device_type}"
        return f"rank {first.rank} of {first.world_size}, {cluster}"

    def values(self) -> dict[str, float]:
        """The totals by name, as conditions and JSON know them. The graphs run one after the other."""
        before = [graph.prediction.before for graph in self.graphs]
        after = [graph.prediction.after for graph in self.graphs]
        entries = [entry for graph in self.graphs for entry in graph.prediction.report.ledger]
        verdicts = Counter(entry.verdict.kind for entry in entries)
        return {
            "collectives_before": len(entries),
            "collectives": sum(graph.prediction.report.collectives_after for graph in self.graphs),
            **_times(before, "_before"),
            **_times(after, ""),
            "lower_bound_us": sum(timeline.bounds.step_us for timeline in after),
            "bytes": sum(entry.facts.nbytes or 0 for entry in entries),
            **{kind.value.replace("-", "_"): verdicts[kind] for kind in VerdictKind},
        }

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        first = self.graphs[0].captured
        return {
            "schema": SCHEMA,
            "target": self.target,
            "world_size": first.world_size,
            "rank": first.rank,
            "topology": self.model.topology.name if self.model.topology is not None else None,
            "options": self.options.text(),
            "totals": self.values(),
            "graphs": [_graph_data(graph) for graph in self.graphs],
        }

    def views(self) -> list[View]:
        """The graphs for the timeline page."""
        return [
            view_of(graph.name, found.before, found.after, found.report.ledger, f"{self.target}: {self.setting}")
            for graph in self.graphs
            for found in (graph.prediction,)
        ]

    def trace(self) -> dict[str, Any]:
        """All timelines as one Chrome trace, a process each."""
        events: list[dict[str, Any]] = []
        timelines = [t for graph in self.graphs for t in (graph.prediction.before, graph.prediction.after)]
        for number, timeline in enumerate(timelines):
            events += [{**event, "pid": number} for event in timeline.chrome_trace()["traceEvents"]]
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    @property
    def problems(self) -> tuple[str, ...]:
        """What went wrong in any of the graphs."""
        return tuple(problem for graph in self.graphs for problem in graph.prediction.report.problems)


def explain(target: str, graphs: Sequence[CapturedGraph], options: CompileOptions) -> Explanation:
    """Run the pipeline that the options ask for on graphs, in place, and say what becomes of each collective."""
    model, pipeline = CostModel.of(options), Pipeline.of(options)
    roles = Counter(captured.role for captured in graphs)
    found = []
    for captured in graphs:
        name = captured.role if roles[captured.role] == 1 else captured.name
        groups = GroupTable(captured.groups)
        prediction = predict(captured.gm, pipeline, options=options, groups=groups, model=model, name=name)
        found.append(Explained(name=name, captured=captured, prediction=prediction))
    return Explanation(target=target, graphs=tuple(found), options=options, model=model)


def _times(timelines: Sequence[Timeline], suffix: str) -> dict[str, float]:
    return {
        f"step{suffix}_us": sum(timeline.step_us for timeline in timelines),
        f"compute{suffix}_us": sum(timeline.compute_us for timeline in timelines),
        f"exposed{suffix}_us": sum(timeline.exposed_us for timeline in timelines),
        f"peak{suffix}_bytes": max((timeline.peak_bytes for timeline in timelines), default=0),
    }


def _graph_data(graph: Explained) -> dict[str, Any]:
    found = graph.prediction
    return {
        "name": graph.name,
        "role": graph.captured.role,
        "report": found.report.to_data(),
        "before": _summary(found.before),
        "after": _summary(found.after),
    }


def _summary(timeline: Timeline) -> dict[str, Any]:
    return {
        "step_us": timeline.step_us,
        "compute_us": timeline.compute_us,
        "exposed_us": timeline.exposed_us,
        "peak_bytes": timeline.peak_bytes,
        "lower_bound_us": timeline.bounds.step_us,
        "notes": list(timeline.notes),
    }
