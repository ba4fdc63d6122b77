"""Step time of data-parallel training on two gloo processes: torch's ways, inductor's passes, and ours, in one run.

python benchmarks/bench_step.py [--quick] [--network loopback] [--workload small] [--mode ours] [--caps 1 25 1000]

All modes stay alive and take a few steps in turn, round after round, so that whatever else the machine does meets them
alike. Processes are pinned to no core. 1gbit is two network namespaces joined by a shaped link, and needs root. They
stand for two hosts, so ours may not use the memory that they share there (`lower=False`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from _bench import print_table  # noqa: E402

from counterpoint.passes.pipeline import DEFAULT_PIPELINE  # noqa: E402
from tests.support.netns import missing, shaped_link  # noqa: E402

NETWORKS = {"loopback": None, "1gbit": 1.0}
WORKLOADS = ("small", "decoder", "large")
COLUMNS = ["mode", "ms", "least", "to best peer", "calls", "packed MB", "peak MB", "first s", "CPU s", "loss +-"]
LIMIT_S = 3000


def run(network: str, job: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of rank 0."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-step-")))
        rate = NETWORKS[network]
        ends = stack.enter_context(shaped_link(rate)) if rate is not None else (None, None)
        started = []
        for rank, end in enumerate(ends):
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
            environment |= end.environment if end is not None else {"GLOO_SOCKET_IFNAME": "lo"}
            own = json.dumps({**job, "rank": rank, "store": str(folder / "store")})
            script = [sys.executable, str(HERE / "_step_worker.py"), own, str(folder / "rows.json")]
            started.append(subprocess.Popen([*(end.command if end is not None else []), *script], env=environment))
        try:
            codes = [process.wait(LIMIT_S) for process in started]
        finally:
            for process in started:
                process.kill()
        if any(codes):
            raise SystemExit(f"a rank failed: exit codes {codes}")
        found: list[dict[str, Any]] = json.loads((folder / "rows.json").read_text())
        return found


def table(rows: list[dict[str, Any]]) -> Iterator[list[Any]]:
    """One line a mode, beside the best peer of its way."""
    for way in dict.fromkeys(row["way"] for row in rows):
        own = [row for row in rows if row["way"] == way]
        peers = [row for row in own if not row["ours"]]
        best = min(peers, key=lambda row: statistics.median(row["step_ms"])) if peers else own[0]
        for row in own:
            median = statistics.median(row["step_ms"])
            yield [
                f"{way}: {row['name']}",
                f"{median:.1f}",
                f"{min(row['step_ms']):.1f}",
                f"{_ratio(row, best):.2f}",
                row["calls"],
                "-" if row["packed_mb"] is None else f"{row['packed_mb']:.1f}",
                f"{row['peak_mb']:.1f}",
                f"{row['first_s']:.1f}",
                f"{row['first_cpu_s']:.1f}",
                f"{_apart(row, own[0]):.0e}",
            ]


def capped(cap_mb: float) -> str:
    """Our default pipeline with buckets of one size everywhere."""
    return DEFAULT_PIPELINE.replace("=custom}", f"=custom cap-mb={cap_mb:g}}}")


def _ratio(row: dict[str, Any], other: dict[str, Any]) -> float:
    """How much longer a step takes: the median over rounds, each against the other mode in the same round."""
    return statistics.median(a / b for a, b in zip(row["step_ms"], other["step_ms"], strict=True))


def _apart(row: dict[str, Any], first: dict[str, Any]) -> float:
    pairs = zip(row["losses"], first["losses"], strict=True)
    return max(abs(a - b) / max(abs(b), 1e-6) for a, b in pairs)


def main() -> None:
    """Print a table for each network and workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds, one network and workload")
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    parser.add_argument("--mode", action="append", default=[], help="part of `way: name`; may be given several times")
    parser.add_argument("--passes", action="append", default=[], help="another pipeline of ours to compare")
    parser.add_argument("--caps", type=float, nargs="+", default=[], help="fixed sizes of buckets to compare, in MB")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--no-calibration", action="store_true", help="size buckets by the typical link")
    asked = parser.parse_args()
    # Ended from outside, still end the ranks and the link.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    networks = asked.network or (["loopback"] if asked.quick else list(NETWORKS))
    for network in networks:
        why = missing() if NETWORKS[network] is not None else None
        if why:
            print(f"{network} skipped: {why}")
            continue
        for workload in asked.workload or (["small"] if asked.quick else list(WORKLOADS)):
            job = {
                "workload": workload,
                "modes": asked.mode,
                "passes": [*asked.passes, *(capped(cap) for cap in asked.caps)],
                "one_host": NETWORKS[network] is None,
                "rounds": asked.rounds or (5 if asked.quick else 15),
                "steps": 4 if NETWORKS[network] is None else 2,
                "calibrate": not asked.no_calibration,
            }
            print_table(f"{workload} over {network}: one train step", COLUMNS, table(run(network, job)))


if __name__ == "__main__":
    main()
