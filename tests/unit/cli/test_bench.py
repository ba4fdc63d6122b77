"""`counterpoint bench` finds the benchmarks of a checkout or an installation, and says so where there are none."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from counterpoint.cli import bench as command
from counterpoint.cli import main
from tests.unit.cli.test_processes import gone

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments], catch_exceptions=False)


def test_every_script_of_the_checkout_is_listed_with_what_it_measures() -> None:
    found = command.described(command.benchmark_folder())
    assert {f"bench_{name}.py" for name in found} == {path.name for path in (ROOT / "benchmarks").glob("bench_*.py")}
    assert all(found.values())
    listed = run("--list", "simulator").stdout
    assert "How long simulating a step takes" in listed
    assert "shared_memory" not in listed


def test_an_unknown_name_is_a_usage_error() -> None:
    result = run("nothing-like-it")
    assert result.exit_code == 2
    assert "no benchmark is called like nothing-like-it; there are bucketing" in result.stderr


def test_chosen_benchmarks_run_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bench_one.py").write_text('"""One."""\nprint("ran")\n')
    (tmp_path / "run.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n")
    monkeypatch.setattr(command, "benchmark_folder", lambda: tmp_path)
    assert run("one", "--full").exit_code == 3
    assert run().exit_code == 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_behind(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "run.py").write_text(
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "child.wait()\n"
    )
    code = (
        "import importlib; from pathlib import Path; from counterpoint.cli import main;"
        "module = importlib.import_module('counterpoint.cli.bench');"
        f"module.benchmark_folder = lambda: Path({str(tmp_path)!r}); module.described = lambda _: {{'one': ''}};"
        "main(['bench'])"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.send_signal(how)
    assert parent.wait(timeout=60) == {signal.SIGINT: 130, signal.SIGTERM: 143}[how]
    parent.stdout.close()
    assert all(gone(pid) for pid in pids)


def test_an_installation_without_them_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "CHECKOUT", tmp_path)
    monkeypatch.setattr(command, "DISTRIBUTION", "no-such-distribution")
    result = run()
    assert result.exit_code == 1
    assert "the benchmarks are not installed" in result.stderr
    assert "make bench" in result.stderr


def test_the_package_carries_what_the_benchmarks_import() -> None:
    """What `pip install` puts beside them; each name of the tests that a benchmark imports must be among it."""
    packed = (ROOT / "pyproject.toml").read_text()
    for script in (ROOT / "benchmarks").glob("*.py"):
        for line in script.read_text().splitlines():
            if line.startswith("from tests.support."):
                module = line.split()[1].replace(".", "/")
                assert f'"{module}.py"' in packed, f"{script.name} needs {module}.py"
