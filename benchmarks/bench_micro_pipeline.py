"""Pipelined operators beside the plain sequence of collective and matmul: two CPU ranks on gloo, one thread each.

    python benchmarks/bench_micro_pipeline.py [--quick] [--rate-mbit 1000] [--operators all_gather_matmul ...]

On one host: the plain sequence over loopback, pipelined over messages, pipelined in shared memory, at three sizes. Over
a network: two namespaces joined by a pair of devices, limited to the rate, with matmuls about as long as the transfer;
needs root, and is left out with the reason elsewhere. Every way runs in the same process, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from _bench import print_table

from counterpoint.cost.capabilities import Capabilities, Capability, absent
from counterpoint.ir.pipelined import OPS
from counterpoint.runtime.pipelined import operators  # noqa: F401  registers what is measured
from counterpoint.runtime.probe import PROBES

C10D = torch.ops._c10d_functional
WAIT = C10D.wait_tensor.default
CPU = torch.device("cpu")


class Shape(NamedTuple):
    """A product of m x k and k x n; m counts all ranks' rows."""

    m: int
    k: int
    n: int


class Way(NamedTuple):
    """How a product is run: a name, the capability that the group is given, and the chunks."""

    name: str
    capability: str | None
    chunks: int


PLAIN = Way("plain sequence", None, 1)
MESSAGES = tuple(Way(f"messages, {n} chunks", "messages", n) for n in (1, 2, 4, 8))
SHARED = Way("shared memory", "shared_memory", 1)


# -- on a rank --------------------------------------------------------------------------------------------------------


def gather(shape: Shape, way: Way) -> Callable[[], Any]:
    """An all-gather and the product of what it gathers."""
    ranks, group = dist.get_world_size(), dist.group.WORLD.group_name
    shard, other = torch.randn(shape.m // ranks, shape.k), torch.randn(shape.k, shape.n)
    if way.capability is None:
        return lambda: torch.mm(WAIT(C10D.all_gather_into_tensor.default(shard, ranks, group)), other)
    f32 = [torch.float32]
    return lambda: OPS.all_gather_matmul.default(shard, [other], [None], f32, 0, True, way.chunks, ranks, group, False)


def scatter(shape: Shape, way: Way) -> Callable[[], Any]:
    """A product and its reduce-scatter."""
    ranks, group = dist.get_world_size(), dist.group.WORLD.group_name
    left, right = torch.randn(shape.m, shape.k), torch.randn(shape.k, shape.n)
    if way.capability is None:
        return lambda: WAIT(C10D.reduce_scatter_tensor.default(torch.mm(left, right), "sum", ranks, group))
    return lambda: OPS.matmul_reduce_scatter.default([left], [right], None, "sum", 0, way.chunks, ranks, group)


def reduce(shape: Shape, way: Way) -> Callable[[], Any]:
    """A product and its all-reduce."""
    group = dist.group.WORLD.group_name
    left, right = torch.randn(shape.m, shape.k), torch.randn(shape.k, shape.n)
    if way.capability is None:
        return lambda: WAIT(C10D.all_reduce.default(torch.mm(left, right), "sum", group))
    return lambda: OPS.matmul_all_reduce.default([left], [right], None, "sum", way.chunks, group)


def received(shape: Shape, way: Way) -> Callable[[], Any]:
    """An all-to-all and the product of what it brings."""
    ranks, group = dist.get_world_size(), dist.group.WORLD.group_name
    rows, other, parts = torch.randn(shape.m, shape.k), torch.randn(shape.k, shape.n), [shape.m // ranks] * ranks
    if way.capability is None:
        return lambda: torch.mm(WAIT(C10D.all_to_all_single.default(rows, parts, parts, group)), other)
    f32 = [torch.float32]
    return lambda: OPS.all_to_all_matmul.default(rows, [other], [None], f32, way.chunks, ranks, group, False)


def sent(shape: Shape, way: Way) -> Callable[[], Any]:
    """A product and the all-to-all of its rows."""
    ranks, group = dist.get_world_size(), dist.group.WORLD.group_name
    left, right, parts = torch.randn(shape.m, shape.k), torch.randn(shape.k, shape.n), [shape.m // ranks] * ranks
    if way.capability is None:
        return lambda: WAIT(C10D.all_to_all_single.default(torch.mm(left, right), parts, parts, group))
    return lambda: OPS.matmul_all_to_all.default([left], [right], None, way.chunks, ranks, group)


CASES = {
    "all_gather_matmul": gather,
    "matmul_reduce_scatter": scatter,
    "matmul_all_reduce": reduce,
    "all_to_all_matmul": received,
    "matmul_all_to_all": sent,
}


def settle(way: Way) -> None:
    """Give the group the one capability that a way uses."""
    given = {name: absent("not in this run") for name in ("messages", "shared_memory", "symmetric_memory")}
    if way.capability is not None:
        given[way.capability] = Capability(True, "measured")
    PROBES.settle(dist.group.WORLD, CPU, Capabilities(**given))


def measure(case: str, shape: Shape, ways: list[Way], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each way, in turns; a run counts until the last rank is through."""
    runs = {way: CASES[case](shape, way) for way in ways}
    times: dict[str, list[float]] = {way.name: [] for way in ways}
    for turn in range(repeats + 1):
        for way, run in runs.items():
            settle(way)
            dist.barrier()
            began = time.perf_counter()
            run()
            took = torch.tensor([time.perf_counter() - began])
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if turn:
                times[way.name].append(took.item() * 1e3)
    return times


def matmul_ms(shape: Shape) -> float:
    """The product alone."""
    left, right = torch.randn(shape.m, shape.k), torch.randn(shape.k, shape.n)
    torch.mm(left, right)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        torch.mm(left, right)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def rank_main(job: dict[str, Any]) -> None:
    """Measure everything that the job asks for; rank 0 writes what was found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=job["init"], rank=job["rank"], world_size=2)
    found = []
    for case, sizes, ways in job["work"]:
        shape = Shape(*sizes)
        alone = torch.tensor([matmul_ms(shape)])
        dist.all_reduce(alone, dist.ReduceOp.MAX)
        found.append([case, sizes, alone.item(), measure(case, shape, [Way(*way) for way in ways], job["repeats"])])
    if job["rank"] == 0:
        Path(job["out"]).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


# -- around the ranks -------------------------------------------------------------------------------------------------


def launch(script: str, job: dict[str, Any], where: list[tuple[list[str], dict[str, str]]], address: str) -> list[Any]:
    """Run a script's ranks, each with a command prefix and an environment of its own; what rank 0 found."""
    out = Path(f"/tmp/{Path(script).stem}-{os.getpid()}.json")
    job = {**job, "init": f"tcp://{address}", "out": str(out)}
    ranks = [
        subprocess.Popen(
            [*prefix, sys.executable, script, "--job", json.dumps({**job, "rank": rank})],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        for rank, (prefix, environment) in enumerate(where)
    ]
    try:
        if any(rank.wait(timeout=1200) for rank in ranks):
            raise SystemExit("a rank failed")
        return json.loads(out.read_text())
    finally:
        for rank in ranks:
            rank.kill()
        out.unlink(missing_ok=True)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def network(rate_mbit: int) -> Iterator[list[tuple[list[str], dict[str, str]]]]:
    """Two namespaces joined by devices that pass so much a second."""
    names = [f"cpbench{os.getpid()}{side}" for side in "ab"]
    devices = [f"cpb{os.getpid() % 10000}{side}" for side in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", devices[0], "netns", names[0], "type", "veth", "peer", "name", devices[1], "netns", names[1])
        for i, (name, device) in enumerate(zip(names, devices, strict=True)):
            ip("-n", name, "addr", "add", f"10.77.9.{i + 1}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "link", "set", "lo", "up")
            limit = ["root", "tbf", "rate", f"{rate_mbit}mbit", "burst", "256kb", "latency", "50ms"]
            subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", device, *limit], check=True, capture_output=True)
        yield [
            (["ip", "netns", "exec", name], {"GLOO_SOCKET_IFNAME": device})
            for name, device in zip(names, devices, strict=True)
        ]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def balanced(rate_mbit: int) -> dict[str, Shape]:
    """For each operator the product that takes about as long as its transfer at the rate."""
    torch.set_num_threads(1)
    shape = Shape(1024, 1024, 512)
    flops_a_us = 2 * shape.m * shape.k * shape.n / (matmul_ms(shape) * 1e3)
    bytes_a_us = rate_mbit / 8
    # Bytes sent over flops: m k 4 / 2 to 2 m k n for a gather, m n 4 / 2 to 2 m k n for a scatter, twice for a reduce.
    inner = max(64, round(flops_a_us / bytes_a_us / 64) * 64)
    return {
        "all_gather_matmul": Shape(4096, 1024, inner),
        "matmul_reduce_scatter": Shape(4096, inner, 1024),
        "matmul_all_reduce": Shape(4096, 2 * inner, 1024),
        "all_to_all_matmul": Shape(4096, 1024, inner),
        "matmul_all_to_all": Shape(4096, inner, 1024),
    }


def table(title: str, found: list[Any]) -> None:
    """Medians, with the ratio to the plain sequence and the spread."""
    rows = []
    for case, sizes, alone, times in found:
        base = statistics.median(times[PLAIN.name])
        for name, each in times.items():
            middle = statistics.median(each)
            shape = "x".join(map(str, sizes))
            rows.append([case, shape, name, middle, min(each), max(each), f"{base / middle:.2f}x", alone])
    columns = ["operator", "m x k x n", "way", "median ms", "min", "max", "plain / this", "matmul alone ms"]
    print_table(title, columns, rows)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest size, few repeats")
    parser.add_argument("--rate-mbit", type=int, default=1000, help="of the network (default 1000)")
    parser.add_argument("--operators", nargs="+", choices=list(CASES), default=list(CASES), help="only these")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        rank_main(json.loads(asked.job))
        return
    repeats = 5 if asked.quick else 9
    sizes = [Shape(512, 512, 512), Shape(1024, 1024, 1024), Shape(4096, 1024, 1024)][: 1 if asked.quick else 3]
    ways = [PLAIN, MESSAGES[0], MESSAGES[2], SHARED]
    work = [(case, size, ways) for case in asked.operators for size in sizes]
    loopback = [([], {"GLOO_SOCKET_IFNAME": "lo"})] * 2
    job = {"work": work, "repeats": repeats}
    table("one host, two ranks", launch(__file__, job, loopback, f"127.0.0.1:{free_port()}"))
    try:
        with network(asked.rate_mbit) as where:
            shapes = balanced(asked.rate_mbit)
            job = {"work": [(case, shapes[case], [PLAIN, *MESSAGES]) for case in asked.operators], "repeats": repeats}
            found = launch(__file__, job, where, "10.77.9.1:29577")
        table(f"two hosts, {asked.rate_mbit} Mbit/s, matmul about as long as the transfer", found)
    except (OSError, subprocess.CalledProcessError) as problem:
        print(f"no network of namespaces here, which needs root, ip and tc: {problem}")


if __name__ == "__main__":
    main()
