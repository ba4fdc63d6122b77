"""Ranks of shared memory as threads of one process: the kernels let go of the interpreter lock, so they really meet."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from counterpoint.runtime.shared_memory.faults import Member
from counterpoint.runtime.shared_memory.library import kernels
from counterpoint.runtime.shared_memory.segment import Segment
from counterpoint.runtime.shared_memory.workspace import Workspace

# What no test should ever wait for.
PATIENCE_S = 60.0


class Team:
    """Workspaces over one segment, one a thread."""

    def __init__(
        self,
        size: int,
        *,
        slot_bytes: int = 4096,
        timeout_s: float = PATIENCE_S,
        first_step: int = 0,
        spin_us: float = 5,
    ) -> None:
        library = kernels()
        nbytes = library.cp_segment_bytes(size, slot_bytes)
        first = Segment.create(size, nbytes)
        others = [Segment.of_process(os.getpid(), first.descriptor, size, nbytes) for _ in range(size - 1)]
        self.workspaces = [
            Workspace(
                library,
                segment,
                rank,
                [Member(10 + number, os.getpid()) for number in range(size)],
                group="team",
                timeout_s=timeout_s,
                spin_us=5.0,
                slot_bytes=slot_bytes,
                first_step=first_step,
            )
            for rank, segment in enumerate([first, *others])
        ]
        self._threads = ThreadPoolExecutor(size)

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        for workspace in self.workspaces:
            workspace.close()

    def run(self, job: Callable[[Workspace], Any]) -> list[Any]:
        """`job(workspace)` on every rank at once; results by rank, an exception as its result."""
        futures = [self._threads.submit(job, workspace) for workspace in self.workspaces]
        return [future.exception() or future.result() for future in futures]
