"""Kernels that keep a stream busy until a moment of the device's own clock. Import this only where Triton is.

A kernel begins when a multiprocessor has room for it, which beside large products may be long after its stream is
ready. Time must not run from there, or the emulated network would be slow whenever the processor is busy. So the
stream that issues a collective notes when it is ready, and the hold ends that long after the later of this and the end
of the one before: what it comes late is taken off.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

WARPS_TO_CONTEND = 32
"""A block of the most warps there can be, so that it competes for the multiprocessor that it is on."""
CALLS = 4096
"""How many holds of a channel may be under way."""


@triton.jit(do_not_specialize=["slot"])
def _note(ready, slot):  # type: ignore[no-untyped-def]
    tl.store(ready + slot, globaltimer())


@triton.jit(do_not_specialize=["slot", "before", "duration_ns"])
def _spin(ready, ends, scratch, slot, before, duration_ns):  # type: ignore[no-untyped-def]
    end = tl.maximum(tl.load(ready + slot), tl.load(ends + before)) + duration_ns
    now = globaltimer()
    while now < end:
        now = globaltimer()
    tl.store(ends + slot, end, mask=tl.program_id(0) == 0)
    # Without a result the loop would be dead code.
    tl.store(scratch + tl.program_id(0), now)


class Holds:
    """The holds of one channel, one after the other."""

    def __init__(self, device: torch.device, most_blocks: int) -> None:
        self._ready = torch.zeros(CALLS, dtype=torch.int64, device=device)
        self._ends = torch.zeros(CALLS, dtype=torch.int64, device=device)
        self._scratch = torch.zeros(most_blocks, dtype=torch.int64, device=device)
        self._slot = 0

    def note(self) -> None:
        """On the current stream, the issuing one: a collective is ready from here on."""
        self._slot = (self._slot + 1) % CALLS
        with torch.cuda.device(self._ready.device):
            _note[(1,)](self._ready, self._slot, num_warps=1)

    def hold(self, duration_us: float, blocks: int) -> None:
        """On the current stream, the channel's: keep it busy for the collective that was noted last. One block of one
        warp hardly disturbs what else runs."""
        warps = 1 if blocks == 1 else WARPS_TO_CONTEND
        before = (self._slot - 1) % CALLS
        with torch.cuda.device(self._ready.device):
            _spin[(blocks,)](
                self._ready, self._ends, self._scratch, self._slot, before, round(duration_us * 1e3), num_warps=warps
            )
