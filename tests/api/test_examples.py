"""The examples work as their first lines say: under torchrun, on as many ranks as they name, and on the command line.

No code is generated for them here, which takes most of the time and changes nothing about what they show.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from counterpoint.cli import main
from tests.support.scripts import run_script

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TIME_LIMIT_S = 300
EAGER = {"COUNTERPOINT_CODEGEN": "eager"}

NO_TRANSFORMERS = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed; pip install -c constraints.txt transformers",
)
TRAINED = {"plain_loop.py": 2, "ddp.py": 2, "fully_shard_tp.py": 4, "custom_pass.py": 2, "huggingface.py": 2}
"""The examples that train, and on how many ranks they do so here."""
OTHERS = {"ci_gate.sh", "on_paper.py"}


def run(*command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command with its `counterpoint` and `python` from this interpreter's folder."""
    environment = os.environ | EAGER | variables
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def train(name: str, folder: Path) -> str:
    """What an example prints: the plain loop under torchrun itself, the others started as torchrun would."""
    script, ranks = EXAMPLES / name, TRAINED[name]
    if name != "plain_loop.py":
        result = run_script(script, folder=folder, ranks=ranks, limit_s=TIME_LIMIT_S, variables=EAGER)
        assert result.returncode == 0, result.output
        return result.output
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    done = run(sys.executable, *launcher, str(script), folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(printed: str) -> list[float]:
    return [float(found) for found in re.findall(r"^step \d+, loss (\S+)$", printed, re.MULTILINE)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        ("plain_loop.py", ["backward: 6 collectives, 6 "]),
        ("ddp.py", ["backward: 6 collectives, 6 "]),
        ("fully_shard_tp.py", ["forward: 16 collectives, ", r"backward: \d+ collectives, \d+ "]),
        pytest.param(
            "huggingface.py",
            ["forward: 21 collectives, 21 ", r"backward: \d+ collectives, \d+ "],
            marks=NO_TRANSFORMERS,
        ),
    ],
)
def test_it_learns_and_accounts_for_its_collectives(name: str, verdicts: list[str], tmp_path: Path) -> None:
    printed = train(name, tmp_path)
    first, *_, last = losses(printed)
    assert last < first
    records = [line for line in printed.splitlines() if line.startswith("graph ")]
    assert all(any(re.search(verdict, record) for record in records) for verdict in verdicts), printed
    # What is merged is at least half of it; how is the passes' business.
    rewritten = sum(map(int, re.findall(r"(\d+) (?:bucketed|fused|hidden|pipelined|lowered)", printed)))
    assert rewritten > sum(map(int, re.findall(r"(\d+) left-alone", printed)))


@pytest.mark.slow
def test_a_pass_of_ones_own_trains(tmp_path: Path) -> None:
    printed = train("custom_pass.py", tmp_path)
    told = [line for line in printed.splitlines() if "all_reduce" in line]
    assert len(told) == 4
    for number, line in enumerate(told):
        assert line.startswith(f"backward/all_reduce#{number}: lowered to avg, then "), line


def test_a_pass_of_ones_own_is_found_through_its_entry_point_and_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from counterpoint.passes.registry import Registry

    text = (EXAMPLES / "custom_pass.py").read_text()
    ((group, name, place),) = re.findall(r'entry-points\."(.*)"\]\n *(\S+) = "(.*)"', text)
    info = tmp_path / "average-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: average\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {place}\n")
    for folder in (tmp_path, EXAMPLES):
        monkeypatch.syspath_prepend(str(folder))
    found = Registry().find(name)
    sys.modules[found.__module__].prove()
    assert capsys.readouterr().out.startswith("proved: it fires")


@pytest.mark.slow
def test_the_gate_lets_pass_and_stops(tmp_path: Path) -> None:
    gate = str(EXAMPLES / "ci_gate.sh")
    opened = run(gate, folder=tmp_path)
    assert opened.returncode == 0, opened.stdout + opened.stderr
    assert "exposed time is within 100 us" in opened.stdout
    assert (tmp_path / "out/timeline.html").is_file()
    closed = run(gate, folder=tmp_path, LIMIT_US="1")
    assert closed.returncode == 1
    assert "the condition holds: exposed_us > 1" in closed.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torch's, about the program that is captured
def test_a_step_that_fits_no_laptop_is_explained_on_one() -> None:
    passes = "bucket-all-gather,bucket-reduce-scatter,schedule-overlap"
    arguments = ["explain", f"{EXAMPLES / 'on_paper.py'}:build", "--world-size", "16", "--passes", passes, "--json"]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    totals = json.loads(done.stdout)["totals"]
    assert totals["collectives_before"] == 2 * (4 * 9 + 3)  # each parameter is gathered once and its gradient scattered
    assert totals["peak_bytes"] > 2**32
    assert totals["step_us"] < 0.9 * totals["step_before_us"]


def test_every_example_is_run_and_says_how() -> None:
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert there == {*TRAINED, *OTHERS}
    for name in TRAINED:
        assert f"torchrun --nproc-per-node {TRAINED[name]} examples/{name}" in (EXAMPLES / name).read_text()
    assert "examples/ci_gate.sh\n" in (EXAMPLES / "ci_gate.sh").read_text()
