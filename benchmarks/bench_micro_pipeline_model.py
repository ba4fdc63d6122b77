"""A training step of a decoder under tensor and sequence parallelism: the default pipeline with and without its pieces.

    python benchmarks/bench_micro_pipeline_model.py [--quick] [--rate-mbit 1000]

Two gloo ranks, one thread each, on one host and over two namespaces with a rate limit, which needs root. Ways: eager;
the backend with the default pipeline; the same without `micro-pipeline-tp`. Graphs run as they are, without generated
code, which would be the same for both. Steps in turns; the last rank's count.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _bench import print_table
from bench_micro_pipeline import free_port, launch, network
from torch.distributed.device_mesh import init_device_mesh

from counterpoint.capture.example_models import Decoder, DecoderConfig, parallelize_decoder
from counterpoint.passes.pipeline import DEFAULT_PIPELINE
from counterpoint.report.history import clear_reports, reports

WITHOUT = DEFAULT_PIPELINE.replace("micro-pipeline-tp,", "")


def pipelined() -> int:
    """How many collectives of what was compiled last run in pieces."""
    ledgers = [ledger for record in reports() for ledger in record.ledgers]
    return sum(entry.verdict.kind.value == "pipelined" for ledger in ledgers for entry in ledger)


def ways(model: Any, given: dict[str, Any]) -> dict[str, tuple[Callable[[torch.Tensor], Any], int]]:
    """The model run in each way, warmed up by the caller, with the number of collectives in pieces."""
    found: dict[str, tuple[Callable[[torch.Tensor], Any], int]] = {"eager mode": (copy.deepcopy(model), 0)}
    tokens = torch.zeros(1, given["positions"], dtype=torch.int64)
    for name, passes in (("without pieces", WITHOUT), ("default", DEFAULT_PIPELINE)):
        options = {"codegen": "eager", "passes": passes, **given["options"]}
        clear_reports()
        run = torch.compile(copy.deepcopy(model), backend="counterpoint", options=options, fullgraph=True)
        run(tokens).sum().backward()
        found[name] = run, pipelined()
    return found


def rank_main(job: dict[str, Any]) -> None:
    """Measure on one rank; rank 0 writes what was found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=job["init"], rank=job["rank"], world_size=2)
    torch.manual_seed(0)
    size = job["size"]
    config = DecoderConfig(vocabulary=512, dim=size, layers=2, heads=8, kv_heads=4, hidden=3 * size, positions=2 * size)
    model = parallelize_decoder(Decoder(config), init_device_mesh("cpu", (2,)))
    tokens = torch.randint(config.vocabulary, (1, config.positions))
    runs = ways(model, {**job, "positions": config.positions})
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(job["repeats"] + 1):
        for name, (run, _) in runs.items():
            dist.barrier()
            began = time.perf_counter()
            run(tokens).sum().backward()
            took = torch.tensor([time.perf_counter() - began])
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if turn:
                times[name].append(took.item() * 1e3)
    if job["rank"] == 0:
        Path(job["out"]).write_text(json.dumps([[name, runs[name][1], each] for name, each in times.items()]))
    dist.barrier()
    dist.destroy_process_group()


def table(title: str, found: list[Any]) -> None:
    """Medians, and the ratio to the step without pieces."""
    base = next(statistics.median(each) for name, _, each in found if name == "without pieces")
    rows = [
        [name, count, statistics.median(each), min(each), max(each), f"{base / statistics.median(each):.2f}x"]
        for name, count, each in found
    ]
    print_table(title, ["way", "in pieces", "median ms", "min", "max", "without pieces / this"], rows)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model, few steps")
    parser.add_argument("--rate-mbit", type=int, default=1000, help="of the network (default 1000)")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        rank_main(json.loads(asked.job))
        return
    job = {"size": 128 if asked.quick else 512, "repeats": 3 if asked.quick else 9, "options": {}}
    loopback = [([], {"GLOO_SOCKET_IFNAME": "lo"})] * 2
    table(f"one host, width {job['size']}", launch(__file__, job, loopback, f"127.0.0.1:{free_port()}"))
    try:
        with network(asked.rate_mbit) as where:
            told = {**job, "options": {"bandwidth_gbps": asked.rate_mbit / 1000}}
            found = launch(__file__, told, where, "10.77.9.1:29578")
        table(f"two hosts, {asked.rate_mbit} Mbit/s, width {job['size']}", found)
    except (OSError, subprocess.CalledProcessError) as problem:
        print(f"no network of namespaces here, which needs root, ip and tc: {problem}")


if __name__ == "__main__":
    main()
