"""The cache between interpreters that share nothing but its folder, not even the seed of Python's hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def record_of_a_fresh_process(folder: Path, seed: int) -> str:
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "PYTHONHASHSEED": str(seed),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    program = [sys.executable, "-m", "tests.unit.inductor.compile_sharded"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_a_second_process_hits_and_recalls_the_report(tmp_path: Path) -> None:
    assert record_of_a_fresh_process(tmp_path, seed=1) == "record: miss run 1 left-alone"
    assert record_of_a_fresh_process(tmp_path, seed=2) == "record: hit stored 1 left-alone"
