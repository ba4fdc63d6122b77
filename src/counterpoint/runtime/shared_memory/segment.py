"""The memory that the ranks of a group share: an anonymous file that no folder lists, so a killed rank leaves nothing.

The file is as long as it could ever get, and holds pages only where something was written: growing needs nobody's
agreement. First come counters and slots, which the kernels know; behind them the regions of loans, one for each rank
and turn.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref

from counterpoint.errors import SharedMemoryError

LOAN_TURNS = 2
"""Loans that a rank may have out at once."""
LOAN_BYTES = 1 << 36
"""Room for one loan. Only what is written takes memory."""


class Segment:
    """A descriptor of the file, and a mapping of the part that the kernels work in."""

    def __init__(self, descriptor: int, world: int, kernel_bytes: int) -> None:
        self.descriptor, self.world = descriptor, world
        self._closed = weakref.finalize(self, os.close, descriptor)
        self._loans_at = _aligned(kernel_bytes)
        self.kernel_part = mmap.mmap(descriptor, kernel_bytes)

    @classmethod
    def create(cls, world: int, kernel_bytes: int) -> Segment:
        """A new file, all zeros."""
        try:
            descriptor = os.memfd_create("counterpoint", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (OSError, AttributeError) as problem:
            raise _failed("make a file in memory", problem) from problem
        try:
            os.ftruncate(descriptor, _aligned(kernel_bytes) + world * LOAN_TURNS * LOAN_BYTES)
            # A peer that could shorten the file could also take the ground from under a reader.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except OSError as problem:
            os.close(descriptor)
            raise _failed("size a file in memory", problem) from problem
        return cls(descriptor, world, kernel_bytes)

    @classmethod
    def of_process(cls, pid: int, descriptor: int, world: int, kernel_bytes: int) -> Segment:
        """The file that another process of this host has open."""
        try:
            opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as problem:
            raise _failed(f"open the memory of process {pid}", problem) from problem
        return cls(opened, world, kernel_bytes)

    @property
    def address(self) -> int:
        """Where the part of the kernels is mapped."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.kernel_part))

    def loan_region(self, rank: int, turn: int, nbytes: int) -> mmap.mmap:
        """A mapping of the first bytes of a rank's region. It lives as long as somebody holds it or a view of it."""
        if nbytes > LOAN_BYTES:
            raise SharedMemoryError(f"{nbytes} bytes do not fit into a region of {LOAN_BYTES}")
        offset = self._loans_at + (rank * LOAN_TURNS + turn % LOAN_TURNS) * LOAN_BYTES
        return mmap.mmap(self.descriptor, max(nbytes, 1), offset=offset)

    def close(self) -> None:
        """Let go of the file. Its memory is free when the last rank has done so, and the last view is gone."""
        self._closed()

    @property
    def closed(self) -> bool:
        """Whether this rank has let go of it."""
        return not self._closed.alive


def _aligned(nbytes: int) -> int:
    step = 1 << 21  # where huge pages may begin
    return (nbytes + step - 1) // step * step


def _failed(what: str, problem: Exception) -> SharedMemoryError:
    return SharedMemoryError(
        f"cannot {what}: {problem}",
        where="collectives in shared memory",
        next_step="they need Linux, /proc, and ranks of one user that see each other's processes",
    )
