"""Real gloo ranks for tests: processes that start once, run functions by import path, and never hang a test run.

    def double(x):
        dist.all_reduce(x)
        return x

    def test_sum(ranks):
        assert all(torch.equal(y, torch.full((2,), 2.0)) for y in ranks(2).run(double, torch.ones(2)))

A function and its arguments travel by pickle, so the function lives at the top level of a module; what it returns comes
back rank by rank. Wrap an argument that differs between ranks in `PerRank`. A rank that raises, dies or does not answer
in time ends in one `RankError` that carries what each rank said. No step here waits by sleeping.
"""

from __future__ import annotations

import contextlib
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support import worker

# How long the other ranks may take to answer after one has failed. Most see a lost peer at once; the rest are stopped.
GRACE_S = 2.0
# A rank whose pipe has closed is ending. How is told through the server that forked it, late on a busy machine.
ENDING_S = 60.0
# Importing torch in the first process of a busy two-core machine is the slow part of a start.
START_S = 180.0
DEADLINE_S = 180.0
LOG_TAIL_CHARS = 6000


class PerRank(list[Any]):
    """One value for each rank: `run(f, PerRank([a, b]))` calls `f(a)` on rank 0 and `f(b)` on rank 1."""


class RankError(Exception):
    """A job failed on at least one rank. `failures` maps the rank to its traceback or to how it ended."""

    def __init__(self, failures: dict[int, str]) -> None:
        self.failures = failures
        super().__init__("\n".join(f"rank {rank}: {text}" for rank, text in sorted(failures.items())))


@dataclass
class _Rank:
    process: Any
    pipe: connection.Connection
    log: Path


# What the ranks answered, how others failed, and what is known of those that said nothing; each by rank.
_Outcome = tuple[dict[int, Any], dict[int, str], dict[int, str]]


class Ranks:
    """`world_size` gloo processes, one thread each; started at the first `run` and again after one that broke them."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._ranks: list[_Rank] = []
        self._folder: Path | None = None
        self._stores = 0

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        deadline_s: float = DEADLINE_S,
        reset_compiler: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """`function(*args, **kwargs)` on every rank; the answers in rank order, or `RankError` within the deadline."""
        jobs = [self._job(rank, function, args, kwargs, deadline_s, reset_compiler) for rank in range(self.world_size)]
        self._start()
        answers, failures, silent = self._exchange(jobs, deadline_s)
        if failures or silent:
            self._recover(broken=bool(silent))
            raise RankError({**failures, **silent})
        return [answers[rank] for rank in range(self.world_size)]

    @property
    def pids(self) -> list[int]:
        """Process ids of the running ranks; empty when none run."""
        return [rank.process.pid for rank in self._ranks]

    def stop(self) -> None:
        """End every process, orderly where it listens and by force where it does not."""
        for rank in self._ranks:
            rank.pipe.close()
        limit = time.monotonic() + GRACE_S
        for rank in self._ranks:
            rank.process.join(max(0.0, limit - time.monotonic()))
            if rank.process.exitcode is None:
                rank.process.kill()
                rank.process.join()
            rank.process.close()
        self._ranks = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    # -- how a job travels ------------------------------------------------------------------------------------------

    def _job(
        self,
        rank: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        deadline_s: float,
        reset_compiler: bool,
    ) -> bytes:
        own_args = tuple(self._of_rank(rank, value) for value in args)
        own_kwargs = {name: self._of_rank(rank, value) for name, value in kwargs.items()}
        try:
            return worker.pack(worker.Job(function, own_args, own_kwargs, deadline_s, reset_compiler))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(f"{function} and its arguments must be picklable, at module level: {error}") from error

    def _of_rank(self, rank: int, value: Any) -> Any:
        if not isinstance(value, PerRank):
            return value
        if len(value) != self.world_size:
            raise ValueError(f"PerRank has {len(value)} values for {self.world_size} ranks")
        return value[rank]

    def _exchange(self, jobs: list[bytes], deadline_s: float) -> _Outcome:
        for rank, job in zip(self._ranks, jobs, strict=True):
            # A rank that died between two jobs has closed its pipe; `_collect` finds that and reports it.
            with contextlib.suppress(OSError):
                rank.pipe.send_bytes(job)
        return self._collect(deadline_s)

    def _collect(self, deadline_s: float) -> _Outcome:
        answers: dict[int, Any] = {}
        failures: dict[int, str] = {}
        waiting = {rank.pipe: number for number, rank in enumerate(self._ranks)}
        # The rank stops itself at the deadline and writes where it stood; the margin is for that to arrive.
        limit = time.monotonic() + deadline_s + GRACE_S
        while waiting:
            ready = connection.wait(list(waiting), max(0.0, limit - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                number = waiting.pop(pipe)  # type: ignore[index]
                ok, value = self._receive(number)
                (answers if ok else failures)[number] = value
                if not ok:
                    limit = min(limit, time.monotonic() + GRACE_S)
        for pipe, number in list(waiting.items()):
            # One that died may not have been heard of yet.
            ended = self._ending(number, 0.0)
            if ended is not None:
                failures[number] = ended
                del waiting[pipe]
        late = "had not answered when another rank failed" if failures else f"did not answer within {deadline_s} s"
        silent = {number: f"{late}\n{self._log_tail(number)}" for number in waiting.values()}
        return answers, failures, silent

    def _receive(self, number: int) -> tuple[bool, Any]:
        rank = self._ranks[number]
        try:
            return worker.unpack(rank.pipe.recv_bytes())
        except (EOFError, OSError):
            return False, self._ending(number, ENDING_S) or f"closed its pipe\n{self._log_tail(number)}"

    def _ending(self, number: int, patience_s: float) -> str | None:
        """How a rank ended; None while it runs."""
        process = self._ranks[number].process
        process.join(patience_s)
        if process.exitcode is None:
            return None
        return f"ended with exit code {process.exitcode}\n{self._log_tail(number)}"

    def _log_tail(self, number: int) -> str:
        return self._ranks[number].log.read_text(errors="replace")[-LOG_TAIL_CHARS:]

    # -- the life of the processes ----------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._ranks:
            return
        self._folder = Path(tempfile.mkdtemp(prefix="counterpoint-ranks-"))
        context = get_context("forkserver")
        # The server imports torch once; each rank is then a fork of it and ready within a fraction of a second.
        context.set_forkserver_preload([worker.__name__, "torch.distributed"])
        self._ranks = [self._spawn(context, number) for number in range(self.world_size)]
        self._connect()

    def _spawn(self, context: Any, number: int) -> _Rank:
        log = self._scratch / f"rank{number}.log"
        log.touch()
        here, there = context.Pipe()
        process = context.Process(target=worker.main, args=(there, str(log)), daemon=True)
        process.start()
        there.close()
        return _Rank(process, here, log)

    @property
    def _scratch(self) -> Path:
        if self._folder is None:
            raise RuntimeError("the ranks have not been started")
        return self._folder

    def _connect(self) -> None:
        self._stores += 1
        store = str(self._scratch / f"store{self._stores}")
        jobs = [
            self._job(rank, worker.join_world, (store, rank, self.world_size), {}, START_S, False)
            for rank in range(self.world_size)
        ]
        _, failures, silent = self._exchange(jobs, START_S)
        if failures or silent:
            self.stop()
            raise RankError({**failures, **silent})

    def _recover(self, broken: bool) -> None:
        """Leave nothing of a failed job behind: a collective that only one rank began would pair with a later one."""
        if broken or any(rank.process.exitcode is not None for rank in self._ranks):
            self.stop()
            return
        try:
            self._connect()
        except RankError:
            self.stop()


class RanksByWorldSize:
    """What the `ranks` fixture hands out: `ranks(2)` is the same two processes for the whole test module."""

    def __init__(self) -> None:
        self._pools: dict[int, Ranks] = {}

    def __call__(self, world_size: int) -> Ranks:
        return self._pools.setdefault(world_size, Ranks(world_size))

    def stop(self) -> None:
        for pool in self._pools.values():
            pool.stop()


def per_rank(values: Iterable[Any]) -> PerRank:
    """`PerRank` of any iterable."""
    return PerRank(values)
