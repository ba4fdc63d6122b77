"""Running a script as `python` or `torchrun` would, in processes that find torch imported: they are forks of a server.

Starting Python and importing torch takes seconds, and the documentation has many short scripts.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import time
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from tests.support import worker

# What `tests.support.gloo` asks for as well: there is one server for all.
PRELOADED = [worker.__name__, "torch.distributed"]


class Done(NamedTuple):
    """How a script ended: the first exit code that is not zero, and all that its ranks wrote."""

    returncode: int
    output: str


def run_script(
    script: Path, *, folder: Path, ranks: int = 1, limit_s: float, variables: Mapping[str, str] | None = None
) -> Done:
    """Run a script in a folder on so many ranks, with the variables that torchrun would set and these."""
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    logs = [folder / f"{script.stem}.{rank}.log" for rank in range(ranks)]
    shared = {**_rendezvous(ranks), **(variables or {})} if ranks > 1 else dict(variables or {})
    started = []
    for rank, log in enumerate(logs):
        own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else shared
        process = context.Process(target=_main, args=(str(script), str(folder), str(log), own))
        process.start()
        started.append(process)
    deadline = time.monotonic() + limit_s
    for process in started:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join()
    codes = [process.exitcode or 0 for process in started]
    output = "".join(log.read_text(errors="replace") for log in logs if log.exists())
    return Done(next((code for code in codes if code), 0), output)


def _rendezvous(ranks: int) -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "TORCHELASTIC_RUN_ID": "none",
    }


def _main(script: str, folder: str, log: str, variables: dict[str, str]) -> None:
    with open(log, "w", buffering=1) as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        os.environ.update(variables)
        os.chdir(folder)
        sys.argv = [script]
        sys.path.insert(0, str(Path(script).parent))
        runpy.run_path(script, run_name="__main__")
        sys.stdout.flush()
