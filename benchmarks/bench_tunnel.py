"""Training steps in the wind tunnel: real kernels, emulated network; ours, inductor's schedulers, and the limit.

python benchmarks/bench_tunnel.py [--quick] [--tokens 8192] [--gbps 50 150 400] [--regather] [--json FILE]

One device stands in for rank 0 of 64. Each parameter of a stack of decoder layers is gathered in forward, again in
backward with --regather, and its gradient scattered. Every collective takes 20 us and its bytes over the bandwidth
(gigabytes a second). Inductor's overlap scheduler is told exactly these times; ours gets the same two numbers.

limit: for forward and backward each the longer of compute alone and communication alone, both measured in the tunnel.
On a machine without a GPU the sizes are small, and the CPU's own kernels run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _bench import print_table
from torch import Tensor, nn
from torch._inductor import config as inductor_config

import counterpoint
from counterpoint.capture.example_models import DecoderConfig, DecoderLayer
from counterpoint.cost.link import Link, traffic_bytes
from counterpoint.ir.collective import Collective, read_collective
from counterpoint.ir.ops import Kind, is_collective
from counterpoint.runtime.tunnel import Timing, Tunnel, open_tunnel

WORLD = 64
LATENCY_US = 20.0


@dataclass
class Network:
    """The emulated links; the speed can be changed between steps of the same compiled code."""

    gigabytes_per_s: float
    free: bool = False

    def collective_us(self, kind: Kind, nbytes: float, ranks: Sequence[int], *, device_type: str) -> float:
        if self.free:
            return 0.0
        link = Link(latency_us=LATENCY_US, bandwidth_gbps=8 * self.gigabytes_per_s)
        return link.call_us(traffic_bytes(kind, nbytes, len(ranks)))

    def node_ms(self, node: torch.fx.Node, *_: Any) -> float | None:
        """What inductor's scheduler asks: the time of a collective, None for compute."""
        read = read_collective(node) if is_collective(node) else None
        if not isinstance(read, Collective):
            return None
        nbytes = max(int(read.sent.nbytes), int(read.received.nbytes))
        return self.collective_us(read.kind, nbytes, range(WORLD), device_type="cuda") / 1e3


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


@dataclass(frozen=True)
class Job:
    """What is trained, and where."""

    config: DecoderConfig
    device: torch.device
    dtype: torch.dtype
    regather: bool
    repeats: int


def sizes(quick: bool, tokens: int, layers: int) -> DecoderConfig:
    if torch.cuda.is_available() and not quick:
        return DecoderConfig(dim=4096, layers=layers, heads=32, kv_heads=8, hidden=14336, positions=tokens)
    return DecoderConfig(dim=256, layers=2, heads=8, kv_heads=4, hidden=512, positions=128)


def compiled(job: Job, backend: str, options: dict[str, Any]) -> Callable[[], Tensor]:
    """A step's forward: the model with one gather a parameter, compiled."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.device(job.device):
        model = Stack(job.config).to(job.dtype)
    for layer in model.layers:
        counterpoint.fully_shard(layer, reshard_after_forward=job.regather)
    counterpoint.fully_shard(model, reshard_after_forward=job.regather)
    run = torch.compile(model, backend=backend, options=options or None)
    x = torch.randn(1, job.config.positions, job.config.dim, device=job.device, dtype=job.dtype, requires_grad=True)
    return lambda: run(x)


@dataclass(frozen=True)
class Measured:
    """One way of training."""

    forward_ms: float
    backward_ms: float
    calls: int
    peak_gb: float
    compile_s: float

    @property
    def step_ms(self) -> float:
        return self.forward_ms + self.backward_ms


def measure(job: Job, tunnel: Tunnel, forward: Callable[[], Tensor]) -> Measured:
    """Medians over steps; forward and backward apart, since they are separate graphs."""
    began = time.perf_counter()
    for _ in range(2):
        forward().sum().backward()
    _synchronize(job)
    compile_s = time.perf_counter() - began
    if job.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    tunnel.log.clear()
    times = [_one_step(job, forward) for _ in range(job.repeats)]
    peak = torch.cuda.max_memory_allocated() / 1e9 if job.device.type == "cuda" else float("nan")
    forward_ms, backward_ms = (statistics.median(column) for column in zip(*times, strict=True))
    return Measured(forward_ms, backward_ms, len(tunnel.log) // job.repeats, peak, compile_s)


def _one_step(job: Job, forward: Callable[[], Tensor]) -> tuple[float, float]:
    if job.device.type != "cuda":
        began = time.perf_counter()
        loss = forward().sum()
        middle = time.perf_counter()
        loss.backward()
        return (middle - began) * 1e3, (time.perf_counter() - middle) * 1e3
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    # The host gets ahead of the device while the device is held, so that launching costs nothing.
    torch.cuda.synchronize()
    torch.mm(*(torch.zeros(8192, 8192, device=job.device, dtype=job.dtype) for _ in range(2)))
    marks[0].record()
    out = forward()
    marks[1].record()
    out.sum().backward()
    marks[2].record()
    torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])


def _synchronize(job: Job) -> None:
    if job.device.type == "cuda":
        torch.cuda.synchronize()


@contextmanager
def inductor_overlap(network: Network) -> Iterator[None]:
    """Inductor's overlap scheduler with bucketing, told the true times of collectives."""
    settings = {
        "enable_overlap_scheduling": True,
        "collective_bucketing": True,
        "custom_runtime_estimation": network.node_ms,
        "insert_overlap_deps": True,
    }
    group = inductor_config.aten_distributed_optimizations
    # The cache would hand out what was compiled without the scheduler: its times are no part of the key.
    known: dict[str, Any] = {"fx_graph_cache": False}
    known |= {f"aten_distributed_optimizations.{key}": value for key, value in settings.items() if hasattr(group, key)}
    with inductor_config.patch(known):
        yield


def ours(network: Network, passes: str) -> dict[str, Any]:
    """Our options: the processor of the preset, and the two numbers of the network."""
    options: dict[str, Any] = {"passes": passes, "latency_us": LATENCY_US}
    if torch.cuda.is_available():
        options["topology"] = "h200x8-ib400"
    return options | {"bandwidth_gbps": 8 * network.gigabytes_per_s}


WAYS: dict[str, str] = {
    "ours, order only": "schedule-overlap{bucket=false}",
    "ours": "schedule-overlap",
}


def rows(job: Job, speeds: Sequence[float], results: list[dict[str, Any]]) -> Iterator[list[Any]]:
    network = Network(speeds[0])
    with open_tunnel(WORLD, timing=Timing(costs=network)) as tunnel:
        default = compiled(job, "inductor", {})
        network.free = True
        alone = measure(job, tunnel, default)
        network.free = False
        for speed in speeds:
            network.gigabytes_per_s = speed
            found = {"inductor": measure(job, tunnel, default)}
            travel_ms = [call.duration_us / 1e3 for call in tunnel.log]
            with inductor_overlap(network):
                try:
                    found["inductor overlap"] = measure(job, tunnel, compiled(job, "inductor", {}))
                except Exception as error:
                    print(f"inductor's overlap scheduler failed: {type(error).__name__}: {str(error)[:200]}")
            for name, passes in WAYS.items():
                found[name] = measure(job, tunnel, compiled(job, "counterpoint", ours(network, passes)))
            half = len(travel_ms) // job.repeats
            step = travel_ms[:half]
            gathers = job.config.layers * 9
            limit = max(alone.forward_ms, sum(step[:gathers])) + max(alone.backward_ms, sum(step[gathers:]))
            for name, measured in {"compute alone": alone, **found}.items():
                record = {"gbps": speed, "way": name, "limit_ms": limit, **measured.__dict__}
                results.append({**record, "tokens": job.config.positions, "regather": job.regather})
                times = [measured.forward_ms, measured.backward_ms, measured.step_ms, limit]
                ratio = f"{measured.step_ms / limit:.3f}"
                yield [speed, name, *times, ratio, measured.calls, measured.peak_gb, measured.compile_s]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes and one speed")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--gbps", type=float, nargs="+", default=[50.0, 150.0, 400.0], help="gigabytes a second")
    parser.add_argument("--regather", action="store_true", help="gather again in backward")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    cuda = torch.cuda.is_available()
    job = Job(
        config=sizes(asked.quick, asked.tokens, asked.layers),
        device=torch.device("cuda" if cuda else "cpu"),
        dtype=torch.bfloat16 if cuda else torch.float32,
        regather=asked.regather,
        repeats=3 if asked.quick else 10,
    )
    speeds = asked.gbps if cuda and not asked.quick else [0.05]
    results: list[dict[str, Any]] = []
    times = ["forward ms", "backward ms", "step ms", "limit ms"]
    columns = ["GB/s", "way", *times, "ratio", "calls", "peak GB", "compile s"]
    print_table("steps in the wind tunnel", columns, rows(job, speeds, results))
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
