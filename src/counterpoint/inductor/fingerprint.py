"""What identifies the code of our passes in a cache key: a change of any of it must miss the cache."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch

import counterpoint

UNTOUCHED = frozenset({"cli", "report", "sim"})
"""Parts of the package that compiled code does not depend on."""


def package_version() -> str:
    """The version of the installed distribution; `unknown` when it runs from a bare checkout."""
    try:
        return importlib.metadata.version("counterpoint-compiler")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@cache
def source_hash() -> str:
    """One hash over all source files of the package that compiled code depends on. Read once in a process."""
    root = Path(counterpoint.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if relative.parts[0] not in UNTOUCHED:
            found.update(f"{relative.as_posix()}\0".encode())
            found.update(path.read_bytes() + b"\0")
    return found.hexdigest()


def foreign_sources_hash(kinds: Iterable[type]) -> str | None:
    """A hash of the files that define passes from outside the package; None when one has no file, so no safe key."""
    found = hashlib.sha256()
    for kind in sorted(kinds, key=lambda k: f"{k.__module__}.{k.__qualname__}"):
        if kind.__module__.split(".")[0] == counterpoint.__name__:
            continue
        try:
            source = inspect.getsourcefile(kind)
        except TypeError:
            source = None
        if source is None or not Path(source).is_file():
            return None
        found.update(f"{kind.__module__}.{kind.__qualname__}\0".encode() + Path(source).read_bytes() + b"\0")
    return found.hexdigest()


def fingerprint(*parts: str) -> str:
    """One hash of the package, torch and these parts."""
    everything = (package_version(), source_hash(), torch.__version__, *parts)
    return hashlib.sha256("\0".join(everything).encode()).hexdigest()
