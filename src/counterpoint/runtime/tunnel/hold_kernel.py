"""A kernel that does nothing for a given time, on a given number of multiprocessors. Import it only where Triton is."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

WARPS_TO_CONTEND = 32
"""A block of the most warps there can be, so that it competes for the multiprocessor that it is on."""


@triton.jit
def _spin(ends, duration_ns):  # type: ignore[no-untyped-def]
    began = globaltimer()
    now = began
    while now - began < duration_ns:
        now = globaltimer()
    # Without a result the loop would be dead code.
    tl.store(ends + tl.program_id(0), now)


def hold(duration_us: float, blocks: int, ends: torch.Tensor) -> None:
    """Keep the current stream busy for that long, by the device's own clock. One block of one warp hardly disturbs.

    ends: int64 scratch space of so many elements, on the device.
    """
    warps = 1 if blocks == 1 else WARPS_TO_CONTEND
    with torch.cuda.device(ends.device):
        _spin[(blocks,)](ends, round(duration_us * 1e3), num_warps=warps)
