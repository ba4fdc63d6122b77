"""Predicted steps: graphs, passes and a cluster in, times and memory out. Nothing handed in is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from counterpoint._torch import copy_graph
from counterpoint.capture.graph import CapturedGraph
from counterpoint.cost.link import Link
from counterpoint.cost.model import CostModel
from counterpoint.cost.topology import Level, Topology
from counterpoint.ir.groups import GroupTable
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline
from counterpoint.passes.registry import REGISTRY
from counterpoint.report.prediction import predict

BUCKETING = ("bucket-all-gather", "bucket-reduce-scatter", "bucket-all-reduce", "bucket-all-to-all")
OVERLAP = "schedule-overlap"
"""Chooses buckets and order together."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Passes under a name."""

    label: str
    passes: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One predicted step; graphs run one after the other."""

    label: str
    passes: str
    collectives: int
    step_us: float
    exposed_us: float
    compute_us: float
    lower_bound_us: float
    peak_bytes: int

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def scenarios(options: CompileOptions, bucket_mb: float | None = None) -> tuple[Scenario, ...]:
    """As written, bucketing only, everything; and the user's own passes where some are asked for."""
    found = [Scenario(label="as written", passes=""), Scenario(label="bucketing only", passes=bucketing(bucket_mb))]
    if OVERLAP in REGISTRY.names():
        found.append(Scenario(label="full", passes=f"dedup-collectives,{OVERLAP}"))
    else:
        found.append(Scenario(label="full", passes=f"dedup-collectives,{bucketing(bucket_mb)},schedule-waits"))
    if options.passes is not None:
        found.append(Scenario(label="yours", passes=Pipeline.of(options).text))
    return tuple(found)


def bucketing(cap_mb: float | None = None) -> str:
    """The bucketing passes, with a size of buckets or the automatic one."""
    inner = f"{{cap-mb={cap_mb:g} first-cap-mb={cap_mb:g}}}" if cap_mb is not None else ""
    return ",".join(f"{name}{inner}" for name in BUCKETING)


def outcome(scenario: Scenario, graphs: Sequence[CapturedGraph], options: CompileOptions, model: CostModel) -> Outcome:
    """Run the passes on copies of the graphs, and simulate them."""
    pipeline = Pipeline.parse(scenario.passes)
    used = replace(options, passes=scenario.passes)
    found = [
        predict(
            copy_graph(graph.gm),
            pipeline,
            options=used,
            groups=GroupTable(graph.groups),
            model=model,
            name=graph.role,
        )
        for graph in graphs
    ]
    return Outcome(
        label=scenario.label,
        passes=scenario.passes,
        collectives=sum(one.report.collectives_after for one in found),
        step_us=sum(one.after.step_us for one in found),
        exposed_us=sum(one.after.exposed_us for one in found),
        compute_us=sum(one.after.compute_us for one in found),
        lower_bound_us=sum(one.after.bounds.step_us for one in found),
        peak_bytes=max((one.after.peak_bytes for one in found), default=0),
    )


def with_link(topology: Topology, gbps: float) -> Topology:
    """The cluster with another bandwidth of its outermost links; narrower protocols keep their share."""
    *inner, outermost = topology.levels
    return _with_levels(topology, [*inner, _scaled(outermost, gbps / outermost.link.bandwidth_gbps, 1.0)])


def wider(topology: Topology, times: float) -> Topology:
    """The cluster with all links wider."""
    return _with_levels(topology, [_scaled(level, times, 1.0) for level in topology.levels])


def quicker(topology: Topology, times: float) -> Topology:
    """The cluster with all latencies shorter."""
    changed = _with_levels(topology, [_scaled(level, 1.0, 1.0 / times) for level in topology.levels])
    return replace(changed, call_us=tuple(us / times for us in topology.call_us))


def stronger(topology: Topology, times: float) -> Topology:
    """The cluster with processors that compute and read memory faster."""
    old = topology.processor
    faster = replace(
        old,
        gflops=old.gflops * times,
        gflops_32=old.gflops_32 * times if old.gflops_32 is not None else None,
        gflops_8=old.gflops_8 * times if old.gflops_8 is not None else None,
        memory_gb_per_s=old.memory_gb_per_s * times,
    )
    return replace(topology, processor=faster)


def _with_levels(topology: Topology, levels: Iterable[Level]) -> Topology:
    return replace(topology, levels=tuple(levels))


def _scaled(level: Level, bandwidth: float, latency: float) -> Level:
    def scaled(way: Link) -> Link:
        return Link(latency_us=way.latency_us * latency, bandwidth_gbps=way.bandwidth_gbps * bandwidth)

    return replace(level, ways=tuple(map(scaled, level.ways)))


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A change that somebody could pay for."""

    label: str
    change: Callable[[Topology], Topology] | None = None
    bucket_mb: float | None = None


def knobs(topology: Topology) -> tuple[Knob, ...]:
    """What to try: each kind of thing that a cluster is made of, and other sizes of buckets."""
    found = [
        Knob(label="twice the bandwidth everywhere", change=lambda t: wider(t, 2.0)),
        Knob(label="half the latency", change=lambda t: quicker(t, 2.0)),
        Knob(label="processors twice as fast", change=lambda t: stronger(t, 2.0)),
    ]
    if len(topology.levels) > 1:
        name, gbps = topology.levels[-1].name, topology.levels[-1].link.bandwidth_gbps
        found.insert(1, Knob(label=f"twice the bandwidth of the {name} alone", change=lambda t: with_link(t, 2 * gbps)))
    found += [Knob(label=f"bucketing only, {cap:g} MB a bucket", bucket_mb=cap) for cap in (1, 5, 25, 100, 500)]
    return tuple(found)
