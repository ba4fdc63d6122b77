"""Two or more processes that run one function and talk back; none of them outlives the one that started them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from counterpoint.errors import CounterpointError

_GRACE_S = 3.0


class Message(NamedTuple):
    """What a process says: a kind of its own choosing, and plain data."""

    rank: int
    kind: str
    data: Any


Say = Callable[[str, Any], None]
Work = Callable[[int, int, Say], None]
"""`work(rank, world_size, say)`; importable, since it travels by name."""

_FAILED = "failed"


@contextlib.contextmanager
def processes(work: Work, world_size: int, environment: Mapping[str, str]) -> Iterator[Iterator[Message]]:
    """Start the processes and give what they say as they say it. Leaving the block, in whatever way, ends them all."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    started: list[BaseProcess] = []
    try:
        for rank in range(world_size):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_main, args=(work, rank, world_size, dict(environment), theirs), daemon=True
            )
            with _ctrl_c_ignored():
                process.start()
            # Only the child may hold its end, or the end of the stream would never be seen here.
            theirs.close()
            pipes.append(mine)
            started.append(process)
        yield _messages(pipes, started)
    finally:
        for pipe in pipes:
            pipe.close()
        _end(started)


@contextlib.contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """A process started in this block is deaf to Ctrl-C from its first moment: ending it is the parent's business."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _messages(pipes: list[Connection], started: list[BaseProcess]) -> Iterator[Message]:
    open_pipes = {id(pipe): (rank, pipe) for rank, pipe in enumerate(pipes)}
    while open_pipes:
        for ready in wait([pipe for _, pipe in open_pipes.values()]):
            rank, pipe = open_pipes[id(ready)]
            try:
                kind, data = pipe.recv()
            except EOFError:
                del open_pipes[id(ready)]
                _check_ended_well(rank, started[rank])
                continue
            if kind == _FAILED:
                raise CounterpointError(f"process {rank} failed:\n{data}", where=f"rank {rank}")
            yield Message(rank, kind, data)


def _check_ended_well(rank: int, process: BaseProcess) -> None:
    process.join(timeout=_GRACE_S)
    if process.exitcode:
        raise CounterpointError(
            f"process {rank} ended with exit code {process.exitcode} and said nothing",
            next_step="a negative code is a signal; -9 is often the kernel short of memory",
        )


def _main(work: Work, rank: int, world_size: int, environment: Mapping[str, str], pipe: Connection) -> None:
    """What a process runs."""
    os.environ.update(environment)
    _die_with_parent()

    def say(kind: str, data: Any) -> None:
        pipe.send((kind, data))

    try:
        work(rank, world_size, say)
    except Exception:
        with contextlib.suppress(OSError):
            say(_FAILED, traceback.format_exc())
    finally:
        pipe.close()


def _die_with_parent() -> None:
    """Be the head of a group of processes, compilers included, that goes when the parent goes.

    The parent ends the group when it is interrupted; should the parent be killed, the group ends itself.
    """
    if hasattr(os, "setsid"):
        os.setsid()
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        _kill_group(os.getpid())

    threading.Thread(target=watch, daemon=True).start()


def _end(started: list[BaseProcess]) -> None:
    """Let those that have finished go, and end the rest with all that they started."""
    for process in started:
        if process.exitcode is None:
            process.join(timeout=0.2)
        if process.pid is not None and process.exitcode is None:
            _kill_group(process.pid)
            # One that has only begun to start has no group of its own yet.
            process.kill()
    for process in started:
        process.join(timeout=_GRACE_S)
        process.close()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGTERM)
