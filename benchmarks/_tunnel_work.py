"""What the wind tunnel's benchmark trains, over which network, and how a step is measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.fx import Graph, GraphModule, Node

import counterpoint
from counterpoint._torch import copy_graph, process_group_ranks
from counterpoint.capture.example_models import DecoderConfig, DecoderLayer, tensor_parallel_layer_plan
from counterpoint.capture.world import groups_of
from counterpoint.cost.link import Link, traffic_bytes
from counterpoint.cost.measured import MeasuredTable
from counterpoint.cost.model import CostModel
from counterpoint.cost.presets import topology
from counterpoint.cost.table import Layout, layout_of
from counterpoint.ir.alias import Hazards
from counterpoint.ir.collective import Collective, read_collective
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.ops import Kind, is_collective
from counterpoint.runtime.tunnel import Tunnel
from counterpoint.sim.bounds import bounds_of
from counterpoint.sim.least import least_work

WORLD = 64
LATENCY_US = 20.0
INNER = Link(latency_us=10.0, bandwidth_gbps=8 * 400.0)
"""Between the ranks of one node, where a scenario has groups of them."""
KINDS = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.ALL_TO_ALL, Kind.BROADCAST)
FAR_BYTES = 2.0**40
HEAD_START_CYCLES = 160_000_000
"""Some 80 ms of a GPU."""


@dataclass(frozen=True)
class Job:
    """What is trained, and where."""

    scenario: str
    config: DecoderConfig
    device: torch.device
    dtype: torch.dtype
    repeats: int
    inner: int
    """Ranks of a node, in scenarios that have groups inside it."""

    @property
    def layouts(self) -> Mapping[Layout, bool]:
        """The groups of the scenario, and whether each lies within a node."""
        if self.scenario in ("fsdp", "regather"):
            return {layout_of(range(WORLD)): False}
        return {layout_of(range(self.inner)): True, layout_of(range(0, WORLD, self.inner)): False}


@dataclass
class Network:
    """The emulated links; their speed can be changed between steps of the same compiled code."""

    layouts: Mapping[Layout, bool]
    gigabytes_per_s: float = 50.0
    free: bool = False

    def link(self, layout: Layout) -> Link:
        """The link of a group."""
        if self.layouts.get(layout, False):
            return INNER
        return Link(latency_us=LATENCY_US, bandwidth_gbps=8 * self.gigabytes_per_s)

    def collective_us(self, kind: Kind, nbytes: float, ranks: Sequence[int], *, device_type: str) -> float:
        """What the tunnel asks."""
        if self.free:
            return 0.0
        return self.link(layout_of(ranks)).call_us(traffic_bytes(kind, nbytes, len(ranks)))

    def node_ms(self, node: Node, *_: Any) -> float | None:
        """What inductor's scheduler asks: the time of a collective, None for compute."""
        read = read_collective(node) if is_collective(node) else None
        if not isinstance(read, Collective) or read.group.name is None:
            return None
        nbytes = max(int(read.sent.nbytes), int(read.received.nbytes))
        return self.collective_us(read.kind, nbytes, process_group_ranks(read.group.name), device_type="cuda") / 1e3

    def table(self, operators: MeasuredTable) -> MeasuredTable:
        """The same times as a table, such as `counterpoint calibrate` writes; what our passes are told."""
        device_type = operators.device_type
        curves = {}
        for layout in self.layouts:
            for kind in KINDS:
                times = (self.collective_us(kind, size, layout, device_type=device_type) for size in (1.0, FAR_BYTES))
                curves[kind, layout] = tuple(zip((1.0, FAR_BYTES), times, strict=True))
        return replace(operators, collectives=curves, origin="wind tunnel")


def cost_model(table: MeasuredTable) -> CostModel:
    """Our costs of this device and network."""
    place = topology("h200x8-ib400") if torch.cuda.is_available() else None
    return CostModel(topology=place, table=table)


class Stack(nn.Module):
    """Decoder layers alone: what matters for overlap repeats."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        angle = torch.outer(torch.arange(config.positions).float(), torch.ones(config.head_dim // 2))
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        return x


def prepared(job: Job) -> tuple[nn.Module, Tensor]:
    """The model, spread as the scenario says, and its input."""
    torch.manual_seed(0)
    with torch.device(job.device):
        model = Stack(job.config).to(job.dtype)
    mesh, length = None, job.config.positions
    outer = WORLD // job.inner
    if job.scenario == "hsdp":
        mesh = init_device_mesh(job.device.type, (outer, job.inner), mesh_dim_names=("replicate", "shard"))
    if job.scenario == "tp":
        from torch.distributed.tensor.parallel import parallelize_module

        whole = init_device_mesh(job.device.type, (outer, job.inner), mesh_dim_names=("dp", "tp"))
        for layer in model.layers:
            parallelize_module(layer, whole["tp"], tensor_parallel_layer_plan())
        mesh, length = whole["dp"], length // job.inner
    regather = job.scenario == "regather"
    for layer in model.layers:
        counterpoint.fully_shard(layer, mesh=mesh, reshard_after_forward=regather)
    counterpoint.fully_shard(model, mesh=mesh, reshard_after_forward=regather)
    x = torch.randn(1, length, job.config.dim, device=job.device, dtype=job.dtype, requires_grad=True)
    return model, x


@dataclass(eq=False)
class Graphs:
    """The graphs of a step as code generation gets them: forward, then backward."""

    found: list[GraphModule] = field(default_factory=list)
    groups: list[GroupTable] = field(default_factory=list)

    def take(self, graph: Graph) -> None:
        """A custom pass of inductor's that only looks."""
        from torch._inductor.pattern_matcher import stable_topological_sort

        kept = copy_graph(GraphModule(graph.owning_module or nn.Module(), graph))
        stable_topological_sort(kept.graph)
        self.found.append(kept)
        self.groups.append(GroupTable(groups_of(kept)))

    @property
    def nodes(self) -> list[Node]:
        """All of them."""
        return [node for gm in self.found for node in gm.graph.nodes]

    def bounds_ms(self, model: CostModel, compute_ms: Sequence[float]) -> list[float]:
        """What no order and no buckets can beat, by graph, with the compute that was measured."""
        bounds = []
        for gm, groups, measured in zip(self.found, self.groups, compute_ms, strict=True):
            work = least_work(gm.graph, model, groups)
            scale = measured * 1e3 / max(1e-9, sum(item.compute_us for item in work))
            scaled = [replace(item, compute_us=item.compute_us * scale) for item in work]
            bounds.append(bounds_of(scaled, Hazards.of(gm.graph).order_edges(gm.graph.nodes)).step_us / 1e3)
        return bounds

    def estimated_ms(self, model: CostModel) -> list[float]:
        """What the costs say of the compute of each graph."""
        return [
            sum(item.compute_us for item in least_work(gm.graph, model, groups)) / 1e3
            for gm, groups in zip(self.found, self.groups, strict=True)
        ]


@dataclass(frozen=True)
class Measured:
    """One way of training. Pairs are forward and backward, which are separate graphs."""

    times_ms: tuple[float, float]
    travel_ms: tuple[dict[str, float], dict[str, float]]
    """What the emulated network worked, by channel."""
    calls: int
    peak_gb: float

    @property
    def step_ms(self) -> float:
        """Both."""
        return sum(self.times_ms)


def measure(job: Job, tunnel: Tunnel, forward: Callable[[], Tensor], repeats: int = 0) -> Measured:
    """Medians over steps."""
    synchronize(job)
    if job.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    steps = [_one_step(job, tunnel, forward) for _ in range(repeats or job.repeats)]
    peak = torch.cuda.max_memory_allocated() / 1e9 if job.device.type == "cuda" else float("nan")
    times = tuple(statistics.median(column) for column in zip(*(step[0] for step in steps), strict=True))
    calls = list(tunnel.log)
    middle = steps[-1][1]
    travel = tuple(_by_channel(part) for part in (calls[:middle], calls[middle:]))
    return Measured((times[0], times[1]), (travel[0], travel[1]), len(calls), peak)


def _by_channel(calls: Sequence[Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for call in calls:
        found[call.channel] = found.get(call.channel, 0.0) + call.duration_us / 1e3
    return found


def _one_step(job: Job, tunnel: Tunnel, forward: Callable[[], Tensor]) -> tuple[tuple[float, float], int]:
    """Forward and backward in milliseconds, and how many collectives were forward's."""
    tunnel.log.clear()
    if job.device.type != "cuda":
        began = time.perf_counter()
        loss = forward().sum()
        middle, calls = time.perf_counter(), len(tunnel.log)
        loss.backward()
        return ((middle - began) * 1e3, (time.perf_counter() - middle) * 1e3), calls
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    torch.cuda.synchronize()
    # The host gets ahead of the device while the device is held, so that launching costs nothing.
    torch.cuda._sleep(HEAD_START_CYCLES)
    marks[0].record()
    out = forward()
    marks[1].record()
    calls = len(tunnel.log)
    out.sum().backward()
    marks[2].record()
    torch.cuda.synchronize()
    return (marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])), calls


def synchronize(job: Job) -> None:
    """Until the device is done."""
    if job.device.type == "cuda":
        torch.cuda.synchronize()
