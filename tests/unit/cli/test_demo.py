"""The demo trains, keeps the loss, accounts for every collective and draws a timeline, on real gloo processes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from counterpoint.capture.file import load_graph
from counterpoint.cli import main
from counterpoint.cli.demo.command import WAYS
from counterpoint.cli.demo.training import WAYS as TRAINED
from counterpoint.ir.build import collectives_in
from tests.unit.cli.test_processes import gone


def test_every_way_that_can_be_asked_for_is_there() -> None:
    assert set(WAYS) == set(TRAINED) == {"replicate", "fully_shard", "tensor_parallel"}


@pytest.mark.slow
def test_the_demo_without_code_generation(tmp_path: Path) -> None:
    ways = ["--way", "replicate", "--way", "tensor_parallel"]
    arguments = ["demo", "--codegen", "eager", *ways, "--steps", "2", "--output", str(tmp_path)]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "tensor parallel, compiling the graphs with our passes" in result.stderr
    assert "step 2 of 2, loss" in result.stderr
    assert "replicate, code generation: eager" in result.stdout
    assert "backward/all_reduce#20" in result.stdout
    assert "our passes: a step of " in result.stdout
    # What was bucketed counts as lowered where the processes share memory.
    assert re.search(r"\n(lowered|bucketed) +\d\d ", result.stdout)
    assert "example_models.py:" in result.stdout
    table = result.stdout.partition("what the passes did, per step of training")[2]
    row = r"\nreplicate +23 to \d .* to [\d.]+ [mu]s .*\d ms .*yes, to "
    assert re.search(row, table)
    assert re.search(r"\ntensor_parallel +\d+ to \d+ .*yes, to ", table)
    page = tmp_path / "timeline.html"
    assert f"Open the timeline in a browser:  {page.as_uri()}" in result.stdout
    assert "<canvas" in page.read_text()
    captured = load_graph(tmp_path / "replicate.graph")
    assert (captured.role, captured.world_size) == ("step", 2)
    assert len(collectives_in(captured.gm.graph)) >= 21


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")
def test_ctrl_c_ends_the_demo_with_all_its_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "counterpoint", "demo", "--codegen", "eager", "--steps", "100000"]
    command += ["--output", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr is not None
        next(line for line in demo.stderr if "step 1 of" in line)
        pids = children(demo.pid)
        assert len(pids) >= 2
        demo.send_signal(signal.SIGINT)
        said = demo.stderr.read()
        assert demo.wait() == 130
    assert "interrupted" in said
    assert "Traceback" not in said
    assert all(gone(pid) for pid in pids)
