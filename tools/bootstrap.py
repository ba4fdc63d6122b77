"""Sets up the local `.venv` for one need: `python3 tools/bootstrap.py test`. Standard library only; instant when done.

It picks a Python, reuses a suitable torch that is installed there or installs the pinned one, and installs this
package and the need's tools at the versions in `constraints.txt`. Written for Python 3.7 and newer, so that an old
`python3` can still look for a newer one. `PYTHON=...` chooses the interpreter, `TORCH=2.11.0` the version of torch, in
an environment of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = os.environ.get("TORCH", "")
VENV = ROOT / (f".venv-torch-{TORCH}" if TORCH else ".venv")
CONSTRAINTS = ROOT / "constraints.txt"
OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 11)
OTHER_PYTHONS = ["python3.13", "python3.12", "python3.11", "python3.10"]
HEARTBEAT_S = 15

# What each need installs beside the package itself. Linting reads text only, so it does without the package and torch.
NEEDS = {
    "run": ["numpy"],
    "test": ["numpy", "pytest", "hypothesis"],
    "types": ["numpy", "mypy"],
    "docs": ["mkdocs"],
    "lint": ["ruff"],
}
WITHOUT_PACKAGE = {"lint"}

# Asked of an interpreter in a process of its own. Metadata only: importing torch takes seconds.
PROBE = """
import importlib.metadata as m, importlib.util as u, json, sys, sysconfig
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({
    "executable": sys.executable, "version": list(sys.version_info[:3]), "base": sys.base_prefix,
    "in_venv": sys.prefix != sys.base_prefix, "site": sysconfig.get_path("purelib"),
    "torch": version("torch"), "pip": u.find_spec("pip") is not None,
    "can_make_venv": u.find_spec("ensurepip") is not None and u.find_spec("venv") is not None,
}))
"""


class SetupError(Exception):
    """Set-up cannot go on; the text says what to do."""


def main(need: str) -> None:
    if is_set_up(need):
        return
    began = time.monotonic()
    say(f"setting up {VENV.name} for '{need}' (once; later runs skip this)")
    python = find_python()
    make_venv(python)
    install(need)
    check(need)
    stamp_file(need).write_text(json.dumps(fingerprint(python)))
    say(f"ready in {time.monotonic() - began:.0f} s")


# -- what has been done before ---------------------------------------------------------------------------------------


def stamp_file(need: str) -> Path:
    return VENV / f"set-up-{need}.json"


def fingerprint(python: dict) -> dict:
    """Set-up is current while these files and the interpreter are the same."""
    files = [ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return {"files": digest, "base": python["base"], "version": python["version"], "root": str(ROOT)}


def is_set_up(need: str) -> bool:
    try:
        stamp = json.loads(stamp_file(need).read_text())
    except (OSError, ValueError):
        return False
    # Without PYTHON=... any interpreter is as good as the one that was chosen when .venv was made.
    own = {"base": sys.base_prefix, "version": list(sys.version_info[:3])}
    python = own if os.environ.get("PYTHON") else stamp
    return stamp == fingerprint(python) and venv_python().exists()


# -- the interpreter and its virtual environment ---------------------------------------------------------------------


def venv_python() -> Path:
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def probe(executable: str) -> dict | None:
    """Facts about an interpreter, or None when it does not run."""
    try:
        answer = subprocess.run(
            [executable, "-c", PROBE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=True
        )
        return json.loads(answer.stdout.decode())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def find_python() -> dict:
    wanted = os.environ.get("PYTHON")
    for name in [wanted] if wanted else [sys.executable, *OTHER_PYTHONS]:
        facts = probe(name)
        if facts and tuple(facts["version"]) >= OLDEST_PYTHON:
            torch = f"torch {facts['torch']}" if facts["torch"] else "no torch"
            say(f"using {facts['executable']} (Python {dotted(facts['version'])}, {torch} installed)")
            return facts
    tried = wanted or ", ".join([sys.executable, *OTHER_PYTHONS])
    raise SetupError(
        f"no Python {dotted(OLDEST_PYTHON)} or newer found (tried {tried}).\n"
        "  Install one, or name it: make test PYTHON=/path/to/python3.11"
    )


def make_venv(python: dict) -> None:
    have = probe(str(venv_python()))
    if have and have["pip"] and have["base"] == python["base"] and have["version"] == python["version"]:
        return
    if VENV.exists():
        say(f"{VENV.name} does not fit this Python: making it anew")
        shutil.rmtree(VENV)
    if not python["can_make_venv"]:
        install_venv_module(python)
    reuse = is_suitable(python["torch"])
    say(f"creating {VENV.name}" + (f", reusing the installed torch {python['torch']}" if reuse else ""))
    run([python["executable"], "-m", "venv", *(["--system-site-packages"] if reuse else []), str(VENV)])
    if reuse and python["in_venv"]:
        # "System" means the base interpreter; this torch lives in another virtual environment on top of it.
        site = Path(probe(str(venv_python()))["site"])
        (site / "outer-environment.pth").write_text(python["site"] + "\n")


def install_venv_module(python: dict) -> None:
    """Debian and Ubuntu ship `venv` without its pip in a package of its own."""
    package = f"python{dotted(python['version'][:2])}-venv"
    if not shutil.which("apt-get") or not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise SetupError(
            f"{python['executable']} cannot make virtual environments: its ensurepip module is missing.\n"
            f"  On Debian and Ubuntu: sudo apt-get install {package}\n"
            "  Then run make again, or choose another interpreter with PYTHON=..."
        )
    say(f"Python's venv module is incomplete here: installing the system package {package}")
    os.environ.setdefault("DEBIAN_FRONTEND", "noninteractive")
    run(["apt-get", "update"])
    run(["apt-get", "install", "-y", "--no-install-recommends", package])


def is_suitable(torch: str | None) -> bool:
    """Whether an installed torch is kept: the one that was asked for, or else any that is new enough."""
    if torch is None or (TORCH and torch.partition("+")[0] != TORCH.partition("+")[0]):
        return False
    return tuple(int(part) for part in torch.split(".")[:2]) >= OLDEST_TORCH


# -- packages --------------------------------------------------------------------------------------------------------


def install(need: str) -> None:
    if need not in WITHOUT_PACKAGE:
        if package_is_there():
            pip(*NEEDS[need])
            return
        install_torch()
        # The build backend is pinned like everything else, hence no isolated (and unpinned) build environment.
        pip("setuptools")
        say("installing counterpoint (editable) and its needs")
        pip("--no-build-isolation", "--editable", str(ROOT), *NEEDS[need])
        return
    # Its command must lie in .venv, even where the reused Python already has the tool.
    pip("--ignore-installed", *NEEDS[need])


def package_is_there() -> bool:
    """Another need has brought torch and this package along."""
    return any(is_set_up(other) for other in NEEDS if other not in WITHOUT_PACKAGE)


def install_torch() -> None:
    facts = probe(str(venv_python()))
    if facts and is_suitable(facts["torch"]):
        return
    say(f"installing torch, {TORCH or 'the pinned version'}")
    say("(a download of 0.2 to 3 GB, depending on the build that pip is offered)")
    say("(a torch of your choice is reused instead when it is installed in the Python that runs this)")
    pip("torch")


def pip(*what: str) -> None:
    facts = probe(str(venv_python())) or {}
    pins = CONSTRAINTS.read_text().splitlines()
    # The torch that is there stays, whatever its version.
    torch = facts["torch"] if is_suitable(facts.get("torch")) else TORCH
    if torch:
        pins = [f"torch=={torch}" if line.startswith("torch==") else line for line in pins]
    used = VENV / "constraints-used.txt"
    used.write_text("\n".join(pins) + "\n")
    bar = [] if sys.stdout.isatty() else ["--progress-bar", "off"]
    flags = ["--no-input", "--disable-pip-version-check", "--constraint", str(used), *bar]
    run([str(venv_python()), "-m", "pip", "install", *flags, *what])


def check(need: str) -> None:
    if need in WITHOUT_PACKAGE or package_is_there():
        return
    say("checking that torch and counterpoint import")
    run([str(venv_python()), "-c", "import torch, counterpoint; print('torch', torch.__version__)"])
    if not any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "g++", "clang++")):
        say("no C++ compiler found: tests that need one are skipped, and the demo runs without generated code")


# -- saying and running ----------------------------------------------------------------------------------------------


def dotted(version: list | tuple) -> str:
    return ".".join(str(part) for part in version)


def say(text: str) -> None:
    print(f"[set-up] {text}", flush=True)


def run(command: list) -> None:
    """Run with its output live. Where no terminal shows progress bars, say regularly that it still works."""
    began = time.monotonic()
    # An interpreter's own search path must not leak into another one.
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
    try:
        while True:
            try:
                code = process.wait(HEARTBEAT_S)
                break
            except subprocess.TimeoutExpired:
                if not sys.stdout.isatty():
                    say(f"... still working, {time.monotonic() - began:.0f} s")
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code != 0:
        raise SetupError(f"this step failed with exit code {code}:\n  {' '.join(command)}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in NEEDS:
        sys.exit(f"usage: python3 tools/bootstrap.py {{{','.join(NEEDS)}}}")
    try:
        main(sys.argv[1])
    except SetupError as error:
        sys.exit(f"[set-up] {error}")
    except KeyboardInterrupt:
        sys.exit("[set-up] interrupted; run make again to go on")
