"""Runs every benchmark, each in a process of its own: `make bench`, at a quick size; `make bench ARGS=--full`.

A benchmark is a script `bench_*.py` in this folder that prints a table and takes `--quick`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the benchmarks.")
    parser.add_argument("names", nargs="*", help="parts of the names of those to run; all when none is given")
    parser.add_argument("--full", action="store_true", help="the full sizes: minutes, where quick takes seconds")
    asked = parser.parse_args()
    scripts = [
        path
        for path in sorted(HERE.glob("bench_*.py"))
        if not asked.names or any(name in path.stem for name in asked.names)
    ]
    failed = [path.name for path in scripts if not run(path, [] if asked.full else ["--quick"])]
    if failed or not scripts:
        print(f"failed: {', '.join(failed)}" if failed else "no such benchmark", file=sys.stderr)
        return 1
    return 0


def run(script: Path, flags: list[str]) -> bool:
    """Run one script; its table goes straight to the terminal."""
    print(f"== {script.stem} {' '.join(flags)}", flush=True)
    began = time.monotonic()
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run([sys.executable, str(script), *flags], env=environment, check=False)
    print(f"   {time.monotonic() - began:.0f} s\n", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
