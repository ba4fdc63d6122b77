"""The members of a workspace, and what is raised when one of them ends, stands still or does something else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from counterpoint.errors import SharedMemoryError
from counterpoint.runtime.shared_memory.library import KINDS, OPERATIONS, TYPES, Fault, Interrupted

# As in segment.h.
TIMED_OUT, ENDED, MISMATCH, INTERRUPTED = 1, 2, 3, 4


@dataclass
class Member:
    """One rank of a workspace."""

    rank: int
    """Its global rank."""
    pid: int
    watch: int = -1
    """A descriptor that becomes readable when the process ends; -1 where the kernel has none."""

    @classmethod
    def of(cls, rank: int, pid: int) -> Member:
        """A member whose end is noticed, where the system can tell."""
        try:
            return cls(rank, pid, os.pidfd_open(pid) if pid != os.getpid() else -1)
        except (OSError, AttributeError):
            return cls(rank, pid)

    def forget(self) -> None:
        """Stop watching."""
        if self.watch >= 0:
            with contextlib.suppress(OSError):
                os.close(self.watch)
            self.watch = -1


class Pulse:
    """Lets signal handlers run while a kernel waits: it asks now and then, and stops waiting when one has raised."""

    def __init__(self) -> None:
        self.raised: BaseException | None = None
        beats = self._beats()
        next(beats)
        # Python runs handlers as soon as any of its code runs: in a function before its first line, where nothing
        # could catch, but in a generator where it stopped, and that is inside a `try`.
        self.callback = Interrupted(beats.__next__)

    def _beats(self) -> Generator[int, None, None]:
        answer = 0
        while True:
            try:
                yield answer
                answer = 0
            except GeneratorExit:
                return
            except BaseException as error:
                self.raised, answer = error, 1

    def reraise(self) -> None:
        """Raise what a handler raised."""
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised


def fault_error(fault: Fault, members: Sequence[Member], rank: int, group: str, timeout_s: float) -> SharedMemoryError:
    """What went wrong, in words, with global ranks."""
    mine = fault.noticed_by == rank
    culprit, witness = members[fault.rank], members[fault.noticed_by]
    what = {
        TIMED_OUT: f"rank {culprit.rank} did not come within {timeout_s:g} s",
        ENDED: f"rank {culprit.rank} (process {culprit.pid}) has ended",
        MISMATCH: f"rank {culprit.rank} called {described(fault.theirs) if mine else 'something else'}",
        INTERRUPTED: f"rank {culprit.rank} was interrupted",
    }.get(fault.failure, f"failure {fault.failure} of rank {culprit.rank}")
    noticed = "" if mine else f", as rank {witness.rank} noticed"
    steps = {
        MISMATCH: "all ranks of a group must call the same collectives with the same sizes in the same order",
        TIMED_OUT: "look at what that rank does instead; a longer timeout is given to init_process_group or new_group",
    }
    return SharedMemoryError(
        what + noticed,
        where=f"rank {members[rank].rank} in group {group}, ranks {[member.rank for member in members]}",
        next_step=steps.get(fault.failure, "look at that rank's output; the group cannot be used any more"),
    )


def described(signature: int) -> str:
    """The collective that a signature stands for; laid out as in kernels.cpp."""
    kind, dtype, operation = signature >> 60, signature >> 54 & 0x3F, signature >> 48 & 0xF
    name = KINDS[kind] if 0 < kind < len(KINDS) else "something else"
    nbytes = f" of {signature & 0xFFFFFFFFFFFF} bytes a rank"
    if kind not in (1, 2, 4):
        return name + nbytes
    types, operations = list(TYPES), list(OPERATIONS)
    return f"{name} ({operations[operation]}, {types[dtype]}){nbytes}"
