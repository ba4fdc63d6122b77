"""Running a program in the tunnel as torchrun would run one of its processes."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from counterpoint.errors import OptionError
from counterpoint.runtime.tunnel.world import Tunnel


def run_script(tunnel: Tunnel, script: Path, arguments: Sequence[str] = ()) -> int:
    """Run a script as rank `tunnel.rank` on the first device of this machine; its exit code.

    It finds the variables that torchrun sets. What it raises, other than SystemExit, is raised here.
    """
    if not script.is_file():
        raise OptionError("there is no such script", where=str(script), next_step="give the path of a Python file")
    own: dict[str, Any] = {"argv": [str(script), *arguments], "path": [str(script.resolve().parent), *sys.path]}
    with _as_torchrun(tunnel), mock.patch.multiple(sys, **own):
        return _exit_code(script)


def _exit_code(script: Path) -> int:
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    return 0


@contextmanager
def _as_torchrun(tunnel: Tunnel) -> Iterator[None]:
    """The variables of torchrun. One device stands in for the rank, whatever its number, so the local rank is 0."""
    variables = {
        "RANK": tunnel.rank,
        "WORLD_SIZE": tunnel.world_size,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "GROUP_RANK": tunnel.rank,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RUN_ID": "tunnel",
    }
    with mock.patch.dict(os.environ, {name: str(value) for name, value in variables.items()}):
        yield
