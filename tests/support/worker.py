"""The process behind one gloo rank: reads jobs from a pipe, runs them, answers, and ends when the pipe closes."""

from __future__ import annotations

import faulthandler
import io
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

# A collective that its peers never join fails after this time; a job's own deadline usually comes first.
COLLECTIVE_TIMEOUT = timedelta(seconds=120)

# The groups that graphs asked for in this process's world: creating one takes a round trip of all ranks.
_groups: dict[tuple[str, tuple[int, ...]], Any] = {}


@dataclass(frozen=True)
class Job:
    """One call, with the time after which the rank writes its stack to the log and ends itself."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    deadline_s: float
    reset_compiler: bool


def pack(value: Any) -> bytes:
    """Any picklable value as bytes. Through torch, since plain pickle loses float8 storages and shares nothing."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """What `pack` was given."""
    return torch.load(io.BytesIO(data), weights_only=False)


def main(pipe: Connection, log: str) -> None:
    """Serve jobs until the parent closes its end, which also happens when the parent dies."""
    _redirect_output(log)
    torch.set_num_threads(1)
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, OSError):
            break
        pipe.send_bytes(_answer(message))
    # A hung peer must not keep this process: no orderly goodbye to the group, the parent has stopped listening.
    os._exit(0)


def join_world(store: str, rank: int, world_size: int) -> None:
    """Enter the default group through a file, so that test runs side by side never meet on a port."""
    _groups.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, world_size),
        rank=rank,
        world_size=world_size,
        timeout=COLLECTIVE_TIMEOUT,
    )
    dist.barrier()


def group_of(name: str, members: tuple[int, ...]) -> Any:
    """The process group of `members` that a graph calls `name`; every rank of the world must ask for it."""
    if (name, members) not in _groups:
        _groups[name, members] = dist.new_group(list(members))
    return _groups[name, members]


def _redirect_output(log: str) -> None:
    out = open(log, "w", buffering=1)  # noqa: SIM115  it stays open as this process's stdout
    os.dup2(out.fileno(), 1)
    os.dup2(out.fileno(), 2)
    sys.stdout = sys.stderr = out


def _answer(message: bytes) -> bytes:
    try:
        job = unpack(message)
        faulthandler.dump_traceback_later(job.deadline_s, exit=True, file=sys.stderr)
        if job.reset_compiler:
            torch.compiler.reset()
        return pack((True, job.function(*job.args, **job.kwargs)))
    except BaseException:  # SystemExit and KeyboardInterrupt of a job are failures of that job too
        return pack((False, traceback.format_exc()))
    finally:
        faulthandler.cancel_dump_traceback_later()
