"""Memory of a rank that its peers read where it lies, without a copy: for work that goes on while shards arrive.

    with workspace.borrow(shard.shape, shard.dtype) as loan:
        loan.mine.copy_(shard)        # or let a product be written there
        loan.publish()                # peers may read
        for peer in loan.others():
            use(loan.of(peer))        # waits until that peer has published
                                      # leaving: this rank reads no more; views of it must not be used

With `parts=n` a rank publishes its memory in n steps, and `loan.of(peer, part)` waits for that many of them. The
memory of a loan is used again by the next but one, which waits until every peer has returned the former.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from math import prod
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from counterpoint.errors import SharedMemoryError
from counterpoint.runtime.shared_memory.segment import LOAN_TURNS, Segment

if TYPE_CHECKING:
    from counterpoint.runtime.shared_memory.workspace import Workspace

_STEPS = 1 << 32


class Loans:
    """The loans of one workspace, in their turns. Regions stay mapped, since mapping costs more than small copies."""

    def __init__(self, segment: Segment, first_step: int) -> None:
        self._segment = segment
        self._mapped: dict[tuple[int, int], mmap.mmap] = {}
        self._turn = 0
        self._next_step = first_step
        self._ends = [first_step] * LOAN_TURNS
        self._out: Loan | None = None

    def borrow(self, workspace: Workspace, shape: Sequence[int], dtype: torch.dtype, parts: int) -> Loan:
        """The next loan; waits until the memory is free again."""
        if self._out is not None:
            raise SharedMemoryError(
                "the loan before has not been returned", where=f"group {workspace.group}", next_step="leave its block"
            )
        turn, step = self._turn % LOAN_TURNS, self._next_step
        workspace.call("cp_wait_returned", self._ends[turn])
        self._turn, self._next_step = self._turn + 1, (step + parts) % _STEPS
        self._ends[turn] = self._next_step
        self._out = Loan(workspace, self, turn, step, parts, tuple(shape), dtype)
        return self._out

    def returned(self, loan: Loan) -> None:
        """A loan is over."""
        self._out = None if self._out is loan else self._out

    def memory(self, rank: int, turn: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A rank's region as a tensor."""
        count = prod(shape)
        nbytes = count * dtype.itemsize
        if not count:
            return torch.empty(tuple(shape), dtype=dtype)
        region = self._mapped.get((rank, turn))
        if region is None or len(region) < nbytes:
            region = self._mapped[rank, turn] = self._segment.loan_region(rank, turn, _rounded(nbytes))
        return torch.frombuffer(region, dtype=dtype, count=count).view(tuple(shape))


class Loan:
    """One turn of shared memory. Every rank borrows the same shape."""

    def __init__(
        self,
        workspace: Workspace,
        loans: Loans,
        turn: int,
        step: int,
        parts: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ) -> None:
        self.shape, self.dtype, self.parts = shape, dtype, parts
        self._workspace, self._loans = workspace, loans
        self._turn, self._step, self._published = turn, step, 0
        self.mine = loans.memory(workspace.rank, turn, shape, dtype)
        """This rank's memory, to be written before it is published."""

    def __enter__(self) -> Loan:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # After an error nothing is published: peers that wait for it are told when this rank ends or their time is up.
        self._loans.returned(self)
        if kind is None:
            self._finish()

    def publish(self, parts: int = 1) -> None:
        """Let peers read so many more parts."""
        if self._published + parts > self.parts:
            raise SharedMemoryError(f"the loan has {self.parts} parts, all are published")
        self._published += parts
        self._workspace.call("cp_lend", (self._step + self._published) % _STEPS)

    def others(self) -> Iterator[int]:
        """The other ranks of the group by their number in it, beginning behind this one, so that not all ask one."""
        size, rank = self._workspace.size, self._workspace.rank
        return ((rank + distance) % size for distance in range(1, size))

    def of(self, peer: int, part: int | None = None) -> Tensor:
        """The memory of a rank of the group once it has published parts 0 to `part`; by default all of them."""
        if peer == self._workspace.rank:
            return self.mine
        needed = self.parts if part is None else part + 1
        self._workspace.call("cp_wait_lent", peer, (self._step + needed) % _STEPS)
        return self._loans.memory(peer, self._turn, self.shape, self.dtype)

    def _finish(self) -> None:
        end = (self._step + self.parts) % _STEPS
        if self._published < self.parts:
            self.publish(self.parts - self._published)
        self._workspace.call("cp_return", end)


def _rounded(nbytes: int) -> int:
    """Room to grow, so that slightly larger loans find the region mapped."""
    return max(1 << 16, 1 << (nbytes - 1).bit_length())
