"""One rank of `bench_step`: trains in every mode, a few steps at a time in turn, and writes down what it measured."""

from __future__ import annotations

import gc
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _step_modes import MODES, WORKLOADS, Mode, Trainer
from torch._dynamo import config as dynamo_config
from torch._inductor.utils import fresh_cache
from torch.profiler import ProfilerActivity, profile

import counterpoint
from counterpoint.passes.ledger import VerdictKind

WARM_STEPS = 2
COLLECTIVE_EVENTS = ("gloo:", "counterpoint::shm_")


@dataclass(frozen=True)
class Job:
    """What to measure. Travels as JSON."""

    rank: int
    store: str
    workload: str
    modes: tuple[str, ...]
    """Parts of `way: name`; all when empty."""
    passes: tuple[str, ...]
    """Pipelines of ours to compare beside the default one."""
    rounds: int
    steps: int
    """In a row, each round."""
    calibrate: bool
    one_host: bool
    """Whether ranks may use the memory that they share."""


@dataclass
class Row:
    """One mode, measured."""

    way: str
    name: str
    ours: bool
    step_ms: list[float]
    """By round."""
    losses: list[float]
    first_s: float
    first_cpu_s: float
    """Processor time of the first step, compilers included."""
    calls: int
    """Collectives in one step: of the process group, and in memory that the ranks share."""
    packed_mb: float | None
    """Payload that shares a collective; None where that is not known."""
    peak_mb: float
    """Most memory allocated in a step beyond what it began with."""


def main() -> None:
    """Run the job that the argument holds, and write rank 0's rows where the second one says."""
    asked = json.loads(sys.argv[1])
    job = Job(**{key: tuple(value) if isinstance(value, list) else value for key, value in asked.items()})
    torch.set_num_threads(1)
    # All modes compile the same functions, each for itself.
    dynamo_config.recompile_limit = 64
    dist.init_process_group("gloo", init_method=f"file://{job.store}", rank=job.rank, world_size=2)
    if job.calibrate:
        link = counterpoint.calibrate_links()
        if job.rank == 0:
            print(f"measured link: {link}", file=sys.stderr, flush=True)
    rows = measure(job)
    if job.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps([asdict(row) for row in rows]))
    dist.barrier()
    dist.destroy_process_group()


def measure(job: Job) -> list[Row]:
    """All modes, ready to run, then in turn."""
    trainers: list[Trainer] = []
    rows: list[Row] = []
    for mode in _chosen(job):
        trainer, row = _prepared(mode, job)
        trainers.append(trainer)
        rows.append(row)
    for _ in range(job.rounds):
        for trainer, row in zip(trainers, rows, strict=True):
            row.step_ms.append(_timed(trainer, job.steps, row.losses))
    return rows


def _chosen(job: Job) -> Sequence[Mode]:
    wanted = [mode for mode in MODES if not job.modes or any(part in f"{mode.way}: {mode.name}" for part in job.modes)]
    extra = [
        replace(mode, name=f"ours, {passes}", options={"passes": passes})
        for mode in wanted
        for passes in job.passes
        if mode.name == "ours"
    ]
    allowed = {} if job.one_host else {"lower": False}
    chosen = [replace(mode, options={**mode.options, **allowed}) if mode.ours else mode for mode in [*wanted, *extra]]
    return sorted(chosen, key=lambda mode: mode.way)


def _prepared(mode: Mode, job: Job) -> tuple[Trainer, Row]:
    """The mode compiled and warm, with what one step of it does."""
    counterpoint.clear_reports()
    trainer = Trainer(mode, WORKLOADS[job.workload])
    dist.barrier()
    began, began_cpu = time.perf_counter(), _cpu_s()
    with tempfile.TemporaryDirectory() as folder, fresh_cache(dir=folder):
        losses = [float(trainer.step())]
        first_s, first_cpu_s = time.perf_counter() - began, _cpu_s() - began_cpu
        losses += [float(trainer.step()) for _ in range(WARM_STEPS)]
    calls, peak_mb = _profiled(trainer, losses)
    if job.rank == 0:
        print(
            f"{mode.way}: {mode.name}: first step {first_s:.1f} s, processor {first_cpu_s:.1f} s",
            file=sys.stderr,
            flush=True,
        )
    packed_mb = _packed_mb() if mode.ours else None
    row = Row(mode.way, mode.name, mode.ours, [], losses, first_s, first_cpu_s, calls, packed_mb, peak_mb)
    return trainer, row


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _timed(trainer: Trainer, steps: int, losses: list[float]) -> float:
    """Milliseconds of a step."""
    gc.collect()
    dist.barrier()
    trained = []
    began = time.perf_counter()
    for _ in range(steps):
        trained.append(trainer.step())
    dist.barrier()
    elapsed = time.perf_counter() - began
    losses += [float(loss) for loss in trained]
    return 1e3 * elapsed / steps


def _profiled(trainer: Trainer, losses: list[float]) -> tuple[int, float]:
    """Collectives, and the most memory beyond what the step began with."""
    # What the compilers left behind would be freed during the step, and hide what it takes.
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        losses.append(float(trainer.step()))
    calls = sum(event.name.startswith(COLLECTIVE_EVENTS) for event in prof.events())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        prof.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    held = [event["args"]["Total Allocated"] for event in events if event.get("name") == "[memory]"]
    return calls, (max(held) - held[0]) / 1e6 if held else 0.0


def _packed_mb() -> float:
    """Bytes of the collectives that share one, by our ledger."""
    entries = [entry for record in counterpoint.reports() for ledger in record.ledgers for entry in ledger]
    merged = {VerdictKind.BUCKETED, VerdictKind.FUSED}
    packed = (entry for entry in entries if any(said.kind in merged for said in entry.history))
    return sum(entry.facts.nbytes or 0 for entry in packed) / 1e6


if __name__ == "__main__":
    main()
