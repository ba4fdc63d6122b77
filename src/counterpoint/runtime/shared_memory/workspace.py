"""Collectives of the ranks of one host through memory that they share.

A workspace belongs to one group. Its collectives block until this rank has its result; all ranks call them in the
same order with equal sizes, as with any process group. Threads of one rank take turns.

Sums run in rank order, whatever the algorithm, so every rank gets the same bits, and one-shot and two-shot the same
as each other. 16-bit floats are summed in float32 and rounded once.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from counterpoint.cost.shared_memory import HOST, HostMemory, prefers_two_shot
from counterpoint.errors import SharedMemoryError
from counterpoint.runtime.shared_memory.faults import Member, Pulse, fault_error
from counterpoint.runtime.shared_memory.library import OPERATIONS, TYPES, Fault, supports
from counterpoint.runtime.shared_memory.loan import Loan, Loans
from counterpoint.runtime.shared_memory.segment import Segment

SLOT_BYTES = 256 * 1024
"""What goes through the memory at once: little enough that all slots stay in a cache, enough to forget the waiting."""


class Workspace:
    """The shared memory of one group, seen from one rank. Made by `rendezvous`."""

    def __init__(
        self,
        kernels: ctypes.CDLL,
        segment: Segment,
        rank: int,
        members: Sequence[Member],
        *,
        group: str,
        timeout_s: float,
        spin_us: float,
        host: HostMemory = HOST,
        processors: int = 0,
        slot_bytes: int = SLOT_BYTES,
        first_step: int = 0,
    ) -> None:
        self.rank, self.group, self.timeout_s = rank, group, timeout_s
        self.host = host
        """What moving bytes takes here, the same on all ranks."""
        self.processors = processors
        """How many processors the ranks have together."""
        self.members = tuple(members)
        self._kernels, self._segment = kernels, segment
        self._turn = threading.RLock()
        self._pulse = Pulse()
        self._memory = ctypes.create_string_buffer(kernels.cp_context_bytes())
        self._context = ctypes.addressof(self._memory)
        watches = (ctypes.c_int * len(members))(*(member.watch for member in members))
        kernels.cp_join(
            self._context,
            segment.address,
            rank,
            len(members),
            slot_bytes,
            int(spin_us * 1e3),
            int(timeout_s * 1e9),
            watches,
            self._pulse.callback,
            first_step,
        )
        self._loans = Loans(segment, first_step)
        self._end = weakref.finalize(self, _let_go, segment, self.members)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.members)

    # -- collectives --------------------------------------------------------------------------------------------------

    def all_reduce(self, input: Tensor, op: str = "sum", *, out: Tensor | None = None) -> Tensor:
        """One-shot or two-shot, as `cost.shared_memory` predicts for the size."""
        two = prefers_two_shot(input.numel() * input.element_size(), self.size, self.host)
        return (self.two_shot_all_reduce if two else self.one_shot_all_reduce)(input, op, out=out)

    def one_shot_all_reduce(self, input: Tensor, op: str = "sum", *, out: Tensor | None = None) -> Tensor:
        """Every rank reads the inputs of all others: one exchange, good for small messages. `out` may be the input."""
        return self._reduced("cp_one_shot", input, op, out, input.shape)

    def two_shot_all_reduce(self, input: Tensor, op: str = "sum", *, out: Tensor | None = None) -> Tensor:
        """Every rank reduces a part of the input, then collects the others' parts. `out` may be the input."""
        return self._reduced("cp_two_shot", input, op, out, input.shape)

    def reduce_scatter(self, input: Tensor, op: str = "sum", *, out: Tensor | None = None) -> Tensor:
        """This rank's rows of the reduction, `input` split along dim 0. `out` may be those rows of the input."""
        rows, rest = divmod(input.shape[0] if input.dim() else 1, self.size)
        if rest or not input.dim():
            raise SharedMemoryError(
                f"cannot scatter a tensor of shape {tuple(input.shape)} over {self.size} ranks",
                where=f"reduce_scatter of group {self.group}",
                next_step="pad dim 0 to a multiple of the group size",
            )
        return self._reduced("cp_reduce_scatter", input, op, out, (rows, *input.shape[1:]))

    def all_gather(self, input: Tensor, *, out: Tensor | None = None) -> Tensor:
        """The inputs of all ranks along dim 0. `input` may be this rank's part of `out`."""
        rows = input.shape[0] if input.dim() else 1
        result = self._result(input, out, (rows * self.size, *input.shape[1:]), "all_gather")
        filled = _row_major(result)
        given = _apart(self._plain(input), filled, self.rank * input.nbytes)
        self.call("cp_all_gather", given.data_ptr(), filled.data_ptr(), given.nbytes)
        return _into(result, filled)

    def _reduced(self, kernel: str, input: Tensor, op: str, out: Tensor | None, shape: Sequence[int]) -> Tensor:
        name = kernel.removeprefix("cp_")
        if not supports(input.dtype, op):
            raise SharedMemoryError(
                f"there is no {op!r} of {input.dtype}",
                where=f"{name} of group {self.group}",
                next_step=f"use one of {', '.join(OPERATIONS)}; avg is for floats, bitwise operations for integers",
            )
        result = self._result(input, out, shape, name)
        filled = _row_major(result)
        given = _apart(self._plain(input), filled, -self.rank * filled.nbytes if filled.nbytes < input.nbytes else 0)
        number = TYPES[input.dtype], OPERATIONS[op]
        self.call(kernel, given.data_ptr(), filled.data_ptr(), filled.numel(), *number)
        return _into(result, filled)

    def _result(self, input: Tensor, out: Tensor | None, shape: Sequence[int], name: str) -> Tensor:
        if out is None:
            return input.new_empty(shape)
        if (out.shape, out.dtype, out.device) != (torch.Size(shape), input.dtype, input.device):
            raise SharedMemoryError(
                f"`out` is {out.dtype} {tuple(out.shape)}, the result {input.dtype} {tuple(shape)}",
                where=f"{name} of group {self.group}",
            )
        return out

    def _plain(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu":
            raise SharedMemoryError(
                f"the tensor lies on {input.device}",
                where=f"group {self.group}",
                next_step="shared memory is for the CPU; elsewhere use the process group or torch's symmetric memory",
            )
        return input.detach().resolve_conj().resolve_neg().contiguous()

    # -- in place reading ---------------------------------------------------------------------------------------------

    def borrow(self, shape: Sequence[int], dtype: torch.dtype, parts: int = 1) -> Loan:
        """Memory of this rank that its peers can read where it lies; see `Loan`. All ranks call it alike."""
        return self._loans.borrow(self, shape, dtype, parts)

    # -- failures, end ------------------------------------------------------------------------------------------------

    def call(self, kernel: str, *arguments: Any) -> None:
        """Run a kernel by its name; the errors that it reports are raised."""
        if self._segment.closed:
            raise SharedMemoryError(
                "the workspace is closed",
                where=f"group {self.group}",
                next_step="a group's memory ends with the group; ask for the workspace of a group that is alive",
            )
        with self._turn:
            if getattr(self._kernels, kernel)(self._context, *arguments) == 0:
                return
            fault = Fault()
            self._kernels.cp_fault(self._context, ctypes.byref(fault))
        self._pulse.reraise()
        raise fault_error(fault, self.members, self.rank, self.group, self.timeout_s)

    def close(self) -> None:
        """Let go of the memory; it is free when every rank has done so or ended. Twice does no harm."""
        with self._turn:
            self._end()


def _let_go(segment: Segment, members: Sequence[Member]) -> None:
    segment.close()
    for member in members:
        member.forget()


def reduce_into(kernels: ctypes.CDLL, out: Tensor, tensors: Sequence[Tensor], op: str = "sum") -> Tensor:
    """The elementwise reduction of tensors in the order given, as the collectives compute it. All contiguous."""
    sources = (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
    fits = all((t.dtype, t.shape) == (out.dtype, out.shape) and t.is_contiguous() for t in (*tensors, out))
    if not (fits and supports(out.dtype, op)):
        raise SharedMemoryError(f"cannot reduce {len(tensors)} tensors by {op!r} into {out.dtype} {tuple(out.shape)}")
    kernels.cp_combine(out.data_ptr(), sources, len(tensors), out.numel(), TYPES[out.dtype], OPERATIONS[op])
    return out


def _row_major(result: Tensor) -> Tensor:
    """Where the kernel writes: the result itself, or memory beside it."""
    plain = result.detach()
    if plain.is_contiguous() and not plain.is_conj() and not plain.is_neg():
        return plain
    return torch.empty_like(plain, memory_format=torch.contiguous_format)


def _apart(given: Tensor, filled: Tensor, offset: int) -> Tensor:
    """The input, copied where the kernel would overwrite what it still has to read.

    It reads and writes element by element, so the input may lie exactly `offset` bytes behind the result's beginning.
    """
    first, other = given.data_ptr(), filled.data_ptr()
    overlap = first < other + filled.nbytes and other < first + given.nbytes
    return given.clone() if overlap and first - other != offset else given


def _into(result: Tensor, filled: Tensor) -> Tensor:
    if filled.data_ptr() != result.data_ptr():
        with torch.no_grad():
            result.copy_(filled)
    return result
