"""Builds the C++ kernels on first use, with the compiler that inductor would take, and keeps them for the next process.

What was built is found again by the sources, the compiler, its flags, the processor and the version of torch. Several
processes may build at once: one does, the others wait for it. A folder that somebody else could write to is not used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from counterpoint.errors import SharedMemoryError

HERE = Path(__file__).resolve().parent
SOURCES = ("kernels.cpp", "reduce.h", "segment.h")
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared", "-fwrapv")
FOR_THIS_PROCESSOR = (("-march=native",), ("-mcpu=native",), ())
"""Tried in this order: compilers differ in what they know."""
LIMIT_S = 120.0


def find_compiler() -> str | None:
    """Path of a C++ compiler: CXX if it is set, else the first of the usual ones."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    return next((found for name in names if (found := shutil.which(name))), None)


def built_library(compiler: str | None = None, folder: Path | None = None) -> Path:
    """The shared library with the kernels, built if it is not there yet; SharedMemoryError where that fails."""
    compiler = compiler if compiler is not None else find_compiler()
    if compiler is None:
        raise SharedMemoryError(
            f"no C++ compiler found (looked for {os.environ.get('CXX') or ', '.join(COMPILERS)})",
            where="collectives in shared memory",
            next_step="install one (Debian: apt-get install g++), or leave collectives to the process group",
        )
    folder = folder if folder is not None else _kernel_folder()
    target = folder / f"shared_memory_{_key(compiler)}.so"
    if not target.exists():
        with _alone(folder / "lock"):
            if not target.exists():
                _build(compiler, target)
    return target


def _kernel_folder() -> Path:
    """Where built kernels are kept, if that is ours alone: inside inductor's cache if that was moved, else near it.

    Where it is not, a folder for this process only.
    """
    moved = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    kept = Path(moved, "counterpoint") if moved else Path(tempfile.gettempdir(), f"counterpoint_{os.geteuid()}")
    with contextlib.suppress(OSError):
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = kept.stat()
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            return kept
    return Path(tempfile.mkdtemp(prefix="counterpoint-kernels-"))


def _key(compiler: str) -> str:
    facts = [torch.__version__, platform.machine(), _processor(), _version_of(compiler), *FLAGS, *FOR_THIS_PROCESSOR]
    digest = hashlib.sha256("\n".join(map(str, facts)).encode())
    for name in SOURCES:
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()[:20]


def _processor() -> str:
    """What the processor can do, since code built for this one may not run on another that shares the folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    kept = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kept)}))


def _version_of(compiler: str) -> str:
    told = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return compiler + told.stdout


def _build(compiler: str, target: Path) -> None:
    """Compile beside the target and move it there: nobody ever sees half a library."""
    handle, partial = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.close(handle)
    errors = ""
    try:
        for native in FOR_THIS_PROCESSOR:
            errors = _compile([compiler, *FLAGS, *native, str(HERE / SOURCES[0]), "-o", partial])
            if not errors:
                os.chmod(partial, 0o755)
                os.replace(partial, target)
                return
    finally:
        Path(partial).unlink(missing_ok=True)
    raise SharedMemoryError(
        f"{compiler} cannot build the kernels: {errors.strip()[:1500]}",
        where="collectives in shared memory",
        next_step="set CXX to a compiler that knows C++17; without it collectives go through the process group",
    )


def _compile(command: Sequence[str]) -> str:
    """Empty, or what the compiler said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    return "" if done.returncode == 0 else done.stderr or f"exit code {done.returncode}"


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time; where the file system has no locks, several build the same and the last one stays."""
    with open(path, "w") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
