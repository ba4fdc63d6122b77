"""The set-up script: finds a Python, keeps a suitable torch, says what to do when stuck, is instant when done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tools import bootstrap

FACTS: dict[str, Any] = {
    "executable": "/usr/bin/python3",
    "version": [3, 11, 2],
    "base": "/usr",
    "in_venv": False,
    "site": "/usr/lib/python3/dist-packages",
    "torch": None,
    "pip": True,
    "can_make_venv": True,
}


@pytest.fixture(autouse=True)
def any_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without `TORCH=...`, also where these tests run with it."""
    monkeypatch.setattr(bootstrap, "TORCH", "")


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for `.venv`."""
    folder = tmp_path / ".venv"
    monkeypatch.setattr(bootstrap, "VENV", folder)
    return folder


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would have been run."""
    ran: list[list[str]] = []
    monkeypatch.setattr(bootstrap, "run", ran.append)
    return ran


@pytest.mark.parametrize(
    ("version", "suitable"),
    [(None, False), ("2.10.1", False), ("2.11.0", True), ("2.13.0+cpu", True), ("2.14.0a0+git12", True), ("3.0", True)],
)
def test_a_torch_of_2_11_or_newer_is_kept(version: str | None, suitable: bool) -> None:
    assert bootstrap.is_suitable(version) is suitable


def test_the_running_python_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHON", raising=False)
    assert bootstrap.find_python()["version"] == list(sys.version_info[:3])


def test_an_old_python3_is_passed_over_for_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHON", raising=False)
    offered = {sys.executable: {**FACTS, "version": [3, 8, 1]}, "python3.12": {**FACTS, "version": [3, 12, 0]}}
    monkeypatch.setattr(bootstrap, "probe", offered.get)
    assert bootstrap.find_python()["version"] == [3, 12, 0]


def test_an_unsuitable_choice_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON", "/nowhere/python")
    with pytest.raises(bootstrap.SetupError, match=r"no Python 3\.10 or newer found \(tried /nowhere/python\)"):
        bootstrap.find_python()


def test_a_torch_to_reuse_makes_the_environment_see_it(venv: Path, commands: list[list[str]]) -> None:
    bootstrap.make_venv({**FACTS, "torch": "2.12.1+cpu"})
    bootstrap.make_venv({**FACTS, "torch": "2.9.0"})
    assert ["--system-site-packages" in command for command in commands] == [True, False]


def test_the_torch_that_is_kept_is_pinned_at_its_own_version(
    venv: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.mkdir()
    monkeypatch.setattr(bootstrap, "probe", lambda _: {**FACTS, "torch": "2.12.1+cpu"})
    bootstrap.install_torch()
    assert commands == []
    bootstrap.pip("pytest")
    used = (venv / "constraints-used.txt").read_text().splitlines()
    assert [line for line in used if line.startswith("torch==")] == ["torch==2.12.1+cpu"]
    assert any(line.startswith("pytest==") for line in used)


def test_a_torch_that_is_asked_for_is_the_one_that_is_installed(
    venv: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.mkdir()
    monkeypatch.setattr(bootstrap, "TORCH", "2.11.0")
    monkeypatch.setattr(bootstrap, "probe", lambda _: {**FACTS, "torch": "2.13.0+cpu"})
    bootstrap.install_torch()
    assert commands[-1][-1] == "torch"
    used = (venv / "constraints-used.txt").read_text().splitlines()
    assert [line for line in used if line.startswith("torch==")] == ["torch==2.11.0"]
    assert bootstrap.is_suitable("2.11.0+cpu")


def test_every_torch_has_an_environment_of_its_own() -> None:
    script = "from tools import bootstrap; print(bootstrap.VENV.name)"
    root = Path(bootstrap.__file__).resolve().parents[1]
    names = [
        subprocess.run(
            [sys.executable, "-c", script], cwd=root, env={"TORCH": torch}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for torch in ("", "2.11.0")
    ]
    assert names == [".venv", ".venv-torch-2.11.0"]


def test_a_missing_venv_module_names_the_package(monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]) -> None:
    monkeypatch.setattr(bootstrap.shutil, "which", lambda _: None)
    with pytest.raises(bootstrap.SetupError, match=r"sudo apt-get install python3\.11-venv"):
        bootstrap.install_venv_module(FACTS)
    assert commands == []


def test_a_missing_venv_module_is_installed_where_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap.shutil, "which", lambda _: "/usr/bin/apt-get")
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 0)
    bootstrap.install_venv_module(FACTS)
    assert [command[:2] for command in commands] == [["apt-get", "update"], ["apt-get", "install"]]
    assert commands[1][-1] == "python3.11-venv"
    assert "installing the system package python3.11-venv" in capsys.readouterr().out


def set_up(venv: Path, **changes: Any) -> None:
    """Pretend that `test` was set up by the running interpreter."""
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    (venv / "bin" / "python").touch()
    own = {"base": sys.base_prefix, "version": list(sys.version_info[:3])}
    bootstrap.stamp_file("test").write_text(json.dumps({**bootstrap.fingerprint(own), **changes}))


def test_set_up_is_done_once(venv: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)
    assert not bootstrap.is_set_up("test")
    set_up(venv)
    bootstrap.main("test")
    assert commands == []
    assert not bootstrap.is_set_up("lint")


def test_a_second_need_installs_only_its_tools(
    venv: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)
    set_up(venv)
    bootstrap.install("docs")
    bootstrap.check("docs")
    assert [command[-1] for command in commands] == ["mkdocs"]


@pytest.mark.parametrize("change", [{"files": "other"}, {"version": [3, 9, 0]}, {"root": "/elsewhere"}])
def test_set_up_is_done_again_when_something_changed(
    venv: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)
    set_up(venv, **change)
    assert not bootstrap.is_set_up("test")


def test_a_failing_step_shows_its_command_and_a_slow_one_is_alive(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "HEARTBEAT_S", 0.05)
    with pytest.raises(bootstrap.SetupError, match="exit code 3"):
        bootstrap.run([sys.executable, "-c", "import sys, time; time.sleep(0.3); sys.exit(3)"])
    assert "still working" in capsys.readouterr().out


def test_an_unknown_need_is_refused() -> None:
    done = subprocess.run([sys.executable, bootstrap.__file__, "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "usage" in done.stderr


def test_every_tool_is_pinned() -> None:
    pins = {line.split("==")[0].lower() for line in bootstrap.CONSTRAINTS.read_text().splitlines()}
    needed = {name for need in bootstrap.NEEDS.values() for name in need} | {"torch", "setuptools", "rich", "click"}
    assert needed <= pins


def test_help_lists_every_target_at_once() -> None:
    began = time.monotonic()
    root = Path(bootstrap.__file__).resolve().parents[1]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(["make", "help"], cwd=root, capture_output=True, text=True, check=True, env=environment)
    targets = [line.split()[1] for line in done.stdout.splitlines()]
    assert {"demo", "test", "lint", "types", "bench", "docs", "help"} <= set(targets)
    assert time.monotonic() - began < 10
