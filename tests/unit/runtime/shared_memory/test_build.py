"""Building the kernels: found again, built once by many at a time, refused in words where it cannot be done."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from counterpoint.errors import SharedMemoryError
from counterpoint.runtime.shared_memory import build
from counterpoint.runtime.shared_memory.library import library_path, load

pytestmark = pytest.mark.cxx


def script(path: Path, lines: str) -> str:
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def copying(tmp_path: Path) -> tuple[str, Path]:
    """A compiler that copies a library that is there, and leaves a line for each time that it did."""
    log = tmp_path / "log"
    text = f"""
for last; do :; done
[ "$1" = --version ] && echo copying && exit 0
echo built >> {log}
cp {library_path()} "$last"
"""
    return script(tmp_path / "copying-compiler", text), log


def test_processes_that_build_at_once_build_once(copying: tuple[str, Path], tmp_path: Path) -> None:
    compiler, log = copying
    folder = tmp_path / "kernels"
    folder.mkdir()
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: build.built_library(compiler, folder), range(8)))
    (path,) = found
    assert log.read_text() == "built\n"
    assert load(path).cp_context_bytes() > 0
    assert {entry.name for entry in folder.iterdir()} == {path.name, "lock"}


def test_another_compiler_is_another_library(copying: tuple[str, Path], tmp_path: Path) -> None:
    compiler, _ = copying
    other = script(tmp_path / "other", Path(compiler).read_text().replace("echo copying", "echo another"))
    assert build.built_library(compiler, tmp_path) != build.built_library(other, tmp_path)


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path: Path) -> None:
    compiler = script(tmp_path / "failing", 'echo "no such thing as C++" >&2; exit 1')
    folder = tmp_path / "kernels"
    folder.mkdir()
    with pytest.raises(SharedMemoryError, match="cannot build the kernels: no such thing as C"):
        build.built_library(compiler, folder)
    assert [entry.name for entry in folder.iterdir()] == ["lock"]


def test_flags_that_a_compiler_does_not_know_are_left_out(copying: tuple[str, Path], tmp_path: Path) -> None:
    compiler, log = copying
    picky = script(
        tmp_path / "picky", f'case "$*" in *native*) echo "what is native?" >&2; exit 1;; esac\nexec {compiler} "$@"'
    )
    assert load(build.built_library(picky, tmp_path)).cp_context_bytes() > 0
    assert log.read_text() == "built\n"


def test_without_a_compiler_the_error_says_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SharedMemoryError, match="looked for no-such-compiler"):
        build.built_library()


def test_a_folder_that_others_can_write_to_is_not_used(
    copying: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who could put a library there could run code as this user."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    inside = build.built_library(copying[0])
    assert inside.parent == cache / "counterpoint"
    assert stat.S_IMODE(os.stat(inside.parent).st_mode) == 0o700
    inside.parent.chmod(0o777)
    assert build.built_library(copying[0]).parent.parent == tmp_path
