"""Training steps in the wind tunnel: real kernels, emulated network; ours beside inductor's ways, and the lower bound.

python benchmarks/bench_tunnel.py [--quick] [--only fsdp:8192:50 ...] [--way ours ...] [--passes PIPELINE] [--json FILE]

One device stands in for rank 0 of 64. Each parameter of a stack of decoder layers is gathered, and its gradient
reduced. Scenarios: fsdp keeps the gathered parameters, regather gathers them again in backward, tp spreads each layer
over the 8 ranks of a node and shards it over the nodes, hsdp shards within nodes and replicates over them. A call takes
20 us and its bytes over the bandwidth; within a node 10 us and 400 GB/s. Inductor's overlap scheduler is told exactly
these times; ours reads them from a table as calibrate writes it, with the measured times of the heavy operators, scaled
to what the two graphs take as a whole.

compute: forward and backward with a network that takes no time, the shortest of all ways. limit: for each of the two
graphs the longer of compute and the busiest channel. bound: the same with what must be first and last, and the longest
chain, but without the latency that buckets save (`counterpoint.sim.least`). no overlap: compute plus all travelling.
A line is printed as soon as it is measured. Without a GPU the sizes are small, and the CPU's own kernels run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import _per_layer  # noqa: F401  registers the pass
import torch
from _inductor_overlap import constants
from _tunnel_work import WORLD, Graphs, Job, Measured, Network, cost_model, measure, prepared, synchronize
from torch import Tensor
from torch._inductor import config as inductor_config

from counterpoint.capture.example_models import DecoderConfig
from counterpoint.cost.fit import Whole, fitted
from counterpoint.cost.measured import MeasuredTable
from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.registry import register
from counterpoint.runtime.operator_times import measure_operators
from counterpoint.runtime.tunnel import Timing, Tunnel, open_tunnel
from counterpoint.sim.simulator import simulate

TABLE = [(tokens, speed) for tokens in (8192, 16384) for speed in (50.0, 150.0, 400.0)]
ROWS = {
    "fsdp": TABLE,
    "regather": [(8192, 50.0), (8192, 400.0)],
    "tp": [(16384, 50.0), (16384, 400.0)],
    "hsdp": [(8192, 50.0), (8192, 400.0)],
}
PEERS = ("inductor", "per layer", "inductor overlap")
HEAD = (
    f"{'scenario':10}{'tokens':>7}{'GB/s':>7}  {'way':34}{'fwd ms':>9}{'bwd ms':>9}{'step ms':>9}{'/limit':>8}"
    f"{'/bound':>8}{'predicted':>11}{'off':>7}{'calls':>7}{'peak GB':>9}{'first s':>9}"
)


@register
@dataclass(frozen=True, kw_only=True)
class BenchNote(Pass):
    """Notes what the step is predicted to take.

    Does: simulates the graph.

    Fires when: always.

    Before and after:

        y = mm(a, b)
        y = mm(a, b)

    Never: changes anything.
    """

    name: ClassVar[str] = "bench-note"
    noted: ClassVar[list[float]] = []

    def run(self, context: PassContext) -> None:
        """Simulate."""
        if context.cost_model is not None:
            self.noted.append(simulate(context.gm, context.cost_model, context.groups, places=False).step_us / 1e3)


@dataclass
class Place:
    """One scenario at one number of tokens: what all its rows share."""

    job: Job
    tunnel: Tunnel
    network: Network
    folder: Path
    graphs: Graphs
    default: Callable[[], Tensor]
    default_s: float
    compute_ms: list[float] = field(default_factory=lambda: [float("inf"), float("inf")])
    operators: MeasuredTable = field(default_factory=MeasuredTable)

    def tune(self, speed: float) -> str:
        """Set the speed; the path of the table of it."""
        self.network.gigabytes_per_s = speed
        path = self.folder / f"{speed:g}.json"
        self.network.table(self.operators).save(path)
        return str(path)

    def calibrate(self) -> None:
        """Measure the operators, and bring them in line with what the graphs take as a whole."""
        device = self.job.device
        times = MeasuredTable(operators=measure_operators(self.graphs.nodes, device).us, device_type=device.type)
        wholes = [
            Whole(tuple(gm.graph.nodes), ms * 1e3) for gm, ms in zip(self.graphs.found, self.compute_ms, strict=True)
        ]
        self.operators = fitted(times, wholes, cost_model(times))

    def alone(self, forward: Callable[[], Tensor]) -> None:
        """Note what compute takes by itself."""
        self.network.free = True
        found = measure(self.job, self.tunnel, forward, 3)
        self.network.free = False
        self.compute_ms = [min(pair) for pair in zip(self.compute_ms, found.times_ms, strict=True)]


def compiled(job: Job, backend: str, options: dict[str, Any]) -> tuple[Callable[[], Tensor], float]:
    """A step's forward, after two steps; and what the first took."""
    torch._dynamo.reset()
    model, x = prepared(job)
    run = torch.compile(model, backend=backend, options=options or None)
    began = time.perf_counter()
    run(x).sum().backward()
    synchronize(job)
    first_s = time.perf_counter() - began
    run(x).sum().backward()
    return lambda: run(x), first_s


@contextmanager
def open_place(job: Job) -> Iterator[Place]:
    """Compile what needs no costs, look at its graphs, and measure their operators."""
    network, graphs = Network(job.layouts), Graphs()
    with open_tunnel(WORLD, timing=Timing(costs=network)) as tunnel, tempfile.TemporaryDirectory() as folder:
        network.free = True
        with inductor_config.patch({"post_grad_custom_post_pass": graphs.take}):
            default, first_s = compiled(job, "inductor", {})
        network.free = False
        place = Place(job, tunnel, network, Path(folder), graphs, default, first_s)
        place.alone(default)
        place.calibrate()
        yield place


@contextmanager
def inductor_overlap(network: Network) -> Iterator[None]:
    """Inductor's overlap scheduler with bucketing, told the true times of collectives."""
    settings = {
        "enable_overlap_scheduling": True,
        "collective_bucketing": True,
        "custom_runtime_estimation": network.node_ms,
        "insert_overlap_deps": True,
    }
    if not torch.cuda.is_available():
        # It would measure compute with events of a GPU.
        settings["compute_estimator"] = "analytical"
    group = inductor_config.aten_distributed_optimizations
    known = {f"aten_distributed_optimizations.{key}": value for key, value in settings.items() if hasattr(group, key)}
    with inductor_config.patch(known), constants(dram_gbps=20.0, tflops=0.05):
        yield


def way_of(name: str, passes: str, place: Place, table: str) -> tuple[Callable[[], Tensor], float]:
    """Compile one way anew."""
    options: dict[str, Any] = {"passes": f"{passes},bench-note", "cost_table": table, "on_error": "raise"}
    if torch.cuda.is_available():
        options["topology"] = "h200x8-ib400"
    around = inductor_overlap(place.network) if name == "inductor overlap" else nullcontext()
    # A cache would hand out what was compiled without the scheduler, whose times are no part of its key.
    with inductor_config.patch({"fx_graph_cache": False}), around:
        return compiled(
            place.job, "inductor" if name == "inductor overlap" else "counterpoint", options if passes else {}
        )


def run_row(place: Place, speed: float, ways: dict[str, str], results: list[dict[str, Any]]) -> None:
    """Measure all ways at one speed, and print them."""
    table = place.tune(speed)
    found: dict[str, tuple[Measured, float, float]] = {}
    for name, passes in ways.items():
        BenchNote.noted.clear()
        try:
            forward, first_s = (
                (place.default, place.default_s) if name == "inductor" else way_of(name, passes, place, table)
            )
            found[name] = (measure(place.job, place.tunnel, forward), first_s, sum(BenchNote.noted))
            place.alone(forward)
        except Exception as error:
            print(f"{name} failed: {type(error).__name__}: {str(error).splitlines()[0][:300]}", flush=True)
            traceback.print_exc(limit=-3)
    _print(place, speed, found, results)


def _print(
    place: Place, speed: float, found: dict[str, tuple[Measured, float, float]], results: list[dict[str, Any]]
) -> None:
    job, model = place.job, cost_model(place.network.table(place.operators))
    travel = next(iter(found.values()))[0].travel_ms
    limit = sum(max(compute, *half.values(), 0.0) for compute, half in zip(place.compute_ms, travel, strict=True))
    bounds = place.graphs.bounds_ms(model, place.compute_ms)
    none = [compute + sum(half.values()) for compute, half in zip(place.compute_ms, travel, strict=True)]
    print(f"{'':24}  {'compute alone':34}" + _cells(place.compute_ms, limit, sum(bounds)))
    estimated = place.graphs.estimated_ms(model)
    print(f"{'':24}  {'compute, by the costs':34}" + _cells(estimated, limit, sum(bounds)))
    print(f"{'':24}  {'bound':34}" + _cells(bounds, limit, sum(bounds)))
    print(f"{'':24}  {'no overlap':34}" + _cells(none, limit, sum(bounds)))
    for name, (one, first_s, noted) in found.items():
        line = f"{job.scenario:10}{job.config.positions:>7}{speed:>7g}  {name:34}"
        line += _cells(one.times_ms, limit, sum(bounds))
        line += f"{noted:>11.2f}{noted / one.step_ms - 1:>7.1%}" if noted else " " * 18
        print(line + f"{one.calls:>7}{one.peak_gb:>9.2f}{first_s:>9.1f}", flush=True)
        results.append(
            {"scenario": job.scenario, "tokens": job.config.positions, "gbps": speed, "way": name, "first_s": first_s}
            | {"limit_ms": limit, "bound_ms": sum(bounds), "compute_ms": place.compute_ms, "predicted_ms": noted}
            | asdict(one)
        )


def _cells(times: Sequence[float], limit: float, bound: float) -> str:
    step = sum(times)
    return f"{times[0]:>9.2f}{times[1]:>9.2f}{step:>9.2f}{step / limit:>8.3f}{step / bound:>8.3f}"


def sizes(cuda: bool, tokens: int, layers: int) -> DecoderConfig:
    """Layers in the shape of Llama 8B; small ones for a CPU."""
    if cuda:
        return DecoderConfig(dim=4096, layers=layers, heads=32, kv_heads=8, hidden=14336, positions=tokens)
    return DecoderConfig(dim=256, layers=2, heads=8, kv_heads=4, hidden=512, positions=tokens)


def asked_rows(only: Sequence[str], cuda: bool, quick: bool) -> dict[tuple[str, int], list[float]]:
    """Speeds by scenario and tokens."""
    rows = ROWS if cuda else {name: [(128, 0.4)] for name in (("fsdp",) if quick and not only else ROWS)}
    found: dict[tuple[str, int], list[float]] = {}
    for scenario, pairs in rows.items():
        for tokens, speed in pairs if not quick else pairs[:1]:
            if not only or any(_matches(one, scenario, tokens, speed) for one in only):
                found.setdefault((scenario, tokens), []).append(speed)
    return found


def _matches(asked: str, scenario: str, tokens: int, speed: float) -> bool:
    parts = (scenario, f"{tokens}", f"{speed:g}")
    return all(want in ("", "*", part) for want, part in zip(asked.split(":"), parts, strict=False))


def main() -> None:
    """Print the rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one row of each scenario asked for")
    parser.add_argument(
        "--only", nargs="+", default=[], help="rows as scenario:tokens:GB/s; parts may be left out or *"
    )
    parser.add_argument("--way", nargs="+", default=[], help=f"some of {', '.join(PEERS)}, ours")
    parser.add_argument("--passes", nargs="+", default=["schedule-overlap{mode=custom}"], help="pipelines of ours")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no further row after so long")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    cuda = torch.cuda.is_available()
    ours = {"ours" if len(asked.passes) < 2 else f"ours {passes}"[:33]: passes for passes in asked.passes}
    ways = {"inductor": "", "per layer": "bench-per-layer", "inductor overlap": "", **ours}
    chosen = {name: passes for name, passes in ways.items() if not asked.way or name.split(" {")[0] in asked.way}
    results: list[dict[str, Any]] = []
    began = time.monotonic()
    print(HEAD, flush=True)
    for (scenario, tokens), speeds in asked_rows(asked.only, cuda, asked.quick).items():
        job = Job(
            scenario=scenario,
            config=sizes(cuda, tokens, asked.layers),
            device=torch.device("cuda" if cuda else "cpu"),
            dtype=torch.bfloat16 if cuda else torch.float32,
            repeats=asked.repeats,
            inner=8 if cuda else 2,
        )
        if time.monotonic() - began > asked.budget_s:
            print(f"{scenario} {tokens} left out: {asked.budget_s:g} s are over", flush=True)
            continue
        with open_place(job) as place:
            for speed in speeds:
                if time.monotonic() - began > asked.budget_s:
                    print(f"{scenario} {tokens} {speed:g} left out: {asked.budget_s:g} s are over", flush=True)
                    continue
                run_row(place, speed, chosen, results)
                if asked.json:
                    asked.json.write_text(json.dumps(results, indent=1))
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
