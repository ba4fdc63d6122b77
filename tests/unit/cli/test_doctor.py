"""`counterpoint doctor` looks at each thing by itself; what is missing has a reason, and what is broken a remedy."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from counterpoint.cli import main
from counterpoint.cli.doctor import devices, software
from counterpoint.cli.doctor.finding import Answer, Probe, State, absent, found_by, works
from counterpoint.errors import OptionError
from counterpoint.runtime import self_test

LOOKED_AT = {
    *("python", "torch", "torch supports", "counterpoint", "backend", "options", "plots", "C++ for the CPU"),
    *("Triton for GPUs", "gloo", "nccl", "others", "processors", "GPUs", "peer access", "multicast"),
    *("symmetric memory", "shared memory"),
}


def run(*arguments: str, **variables: str | None) -> Result:
    alone: Mapping[str, str | None] = {"RANK": None, "WORLD_SIZE": None, **variables}
    return CliRunner().invoke(main, ["doctor", *arguments], catch_exceptions=False, env=alone)


def test_everything_is_looked_at_and_the_fields_are_these() -> None:
    result = run("--json")
    found = json.loads(result.stdout)
    assert set(found) == {"schema", "healthy", "findings"}
    assert found["schema"] == 1
    assert {one["name"] for one in found["findings"]} == LOOKED_AT
    assert all(set(one) == {"area", "name", "state", "said", "remedy"} for one in found["findings"])
    assert {one["state"] for one in found["findings"]} <= {"works", "absent", "broken"}
    broken = [one for one in found["findings"] if one["state"] == "broken"]
    assert all(one["remedy"] for one in broken)
    assert result.exit_code == (1 if broken else 0)


def test_text_is_plain_and_sums_up() -> None:
    result = run()
    assert f"torch             works   {torch.__version__}" in result.stdout
    assert "\x1b" not in result.stdout
    assert result.stdout.rstrip().splitlines()[-1].startswith(("Nothing is broken", "Broken: "))


def test_a_misspelt_option_is_broken_and_decides_the_exit_code() -> None:
    result = run(COUNTERPOINT_BITWSE="1")
    assert result.exit_code == 1
    assert "no options are COUNTERPOINT_BITWSE" in result.stdout
    assert re.search(r"Broken: .*options\.", result.stdout)


def test_an_option_without_sense_is_one_finding_among_the_others() -> None:
    found = json.loads(run("--json", COUNTERPOINT_VERIFY="sometimes").stdout)["findings"]
    broken = {one["name"] for one in found if one["state"] == "broken"}
    # From a checkout that is not installed, torch does not find the backend by name.
    assert broken - {"backend"} == {"options"}
    assert len(found) == len(LOOKED_AT)


def test_without_a_compiler_it_says_what_happens_then(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    answer = software.cpp()
    assert answer.state is State.ABSENT
    assert "without generated code" in answer.said
    assert "install g++" in answer.remedy


def test_an_old_torch_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.4.1")
    answer = software.torch_itself()
    assert answer.state is State.BROKEN
    assert "install torch 2.11 or newer" in answer.remedy


def test_a_gloo_that_cannot_start_is_broken_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("names an interface of Linux")
    monkeypatch.setitem(os.environ, "GLOO_SOCKET_IFNAME", "nosuch0")
    answer = devices.gloo()
    assert answer.state is State.BROKEN
    assert "GLOO_SOCKET_IFNAME" in answer.remedy


def test_what_one_probe_raises_keeps_no_other_from_being_tried() -> None:
    def fails() -> Answer:
        raise RuntimeError("first\nsecond")

    def refuses() -> Answer:
        raise OptionError("no sense", next_step="write another")

    probes = [Probe("a", "one", fails), Probe("a", "two", refuses), Probe("a", "three", lambda: works("well"))]
    one, two, three = found_by(probes)
    assert (one.state, one.said) == (State.BROKEN, "looking at it failed with RuntimeError: first")
    assert (two.said, two.remedy) == ("no sense", "write another")
    assert three.state is State.WORKS
    assert absent("x").state is State.ABSENT


def test_ranks_that_differ_are_named_by_what_differs() -> None:
    same = {"host": "a", "torch": "2.13.0", "the options": "x"}
    assert list(self_test.differences([same, {**same, "host": "b"}])) == []
    (told,) = self_test.differences([same, {**same, "torch": "2.14.0"}, same])
    assert told == "torch: '2.13.0' on ranks 0, 2; '2.14.0' on rank 1"
