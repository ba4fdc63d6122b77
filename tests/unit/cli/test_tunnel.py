"""`counterpoint tunnel` runs an unchanged script as one rank of a cluster that is not there, eager and compiled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from counterpoint.cli import main

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
]

TRAIN = """
import argparse, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import helper

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
steps = parser.parse_args().steps
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
assert dist.get_rank() == int(os.environ["RANK"]) == 3
assert dist.get_world_size() == int(os.environ["WORLD_SIZE"]) == 64
assert os.environ["LOCAL_RANK"] == "0"
device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
model = DistributedDataParallel(helper.model().to(device))
for _ in range(steps):
    model(torch.ones(4, 8, device=device)).sum().backward()

@torch.compile(backend="counterpoint", options={"codegen": "eager"})
def step(x):
    return torch.distributed._functional_collectives.all_gather_tensor(x, 0, dist.group.WORLD) + 1

assert step(torch.zeros(2, device=device)).shape == (128,)
dist.barrier()
dist.destroy_process_group()
print("trained", __name__)
sys.exit(int(os.environ.get("END_WITH", "0")))
"""
HELPER = "import torch\ndef model(): return torch.nn.Linear(8, 8)\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text(HELPER)
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def run(script: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["tunnel", "--world-size", "64", "--rank", "3", *arguments])


@pytest.mark.parametrize("place", [["--topology", "h200x8-ib400"], ["--latency-us", "100", "--bandwidth-gbps", "10"]])
def test_a_script_runs_unchanged_and_what_it_communicated_is_told(script: Path, place: list[str]) -> None:
    done = run(script, *place, str(script), "--steps", "2")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "trained __main__" in done.output
    for kind in ("all_reduce", "all_gather", "barrier"):
        assert re.search(rf"^\s*{kind} ", done.output, re.MULTILINE), done.output
    assert "rank 3 of 64" in done.output


def test_slower_links_take_longer(script: Path) -> None:
    times = []
    for gbps in ("10", "0.001"):
        done = run(script, "--latency-us", "10", "--bandwidth-gbps", gbps, str(script), "--steps", "1")
        times.append(float(re.findall(r"([\d,.]+) ms of network", done.output)[0].replace(",", "")))
    assert times[1] > 10 * times[0]


def test_the_exit_code_is_the_script_s(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("END_WITH", "7")
    assert run(script, str(script), "--steps", "1").exit_code == 7


def test_what_the_script_raises_is_not_swallowed(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise ZeroDivisionError('planted')")
    assert isinstance(run(path, str(path)).exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--topology", "h20"], "h200"), (["--rank", "64"], "no rank 64"), (["--latency-us", "-1"], "latency-us")],
)
def test_what_makes_no_sense_is_refused(script: Path, arguments: list[str], says: str) -> None:
    done = run(script, *arguments, str(script))
    assert done.exit_code == 2
    assert says in done.output + done.stderr
