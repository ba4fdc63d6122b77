"""What collectives in shared memory take on one host, and from which size two exchanges beat one.

The constants are of one machine (two cores of a Xeon of the Sapphire Rapids generation, float32, ranks pinned, nothing
else running; `benchmarks/bench_shared_memory.py` prints prediction and measurement side by side). What they decide, the
crossing, matters little: around it both ways take nearly the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

TYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
)
"""Element types that the kernels reduce, in the order of the enumeration in reduce.h."""
OPERATIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
"""Reductions that they know, in the order of the enumeration there."""


def supports(dtype: torch.dtype, reduce_op: str) -> bool:
    """Whether the kernels have this reduction of this type: those that `torch.distributed` has, and 16-bit integers.

    Averages are for floating point, bitwise operations for integers and truth values.
    """
    if dtype not in TYPES or reduce_op not in OPERATIONS:
        return False
    if reduce_op == "avg":
        return dtype.is_floating_point
    return not (reduce_op in ("band", "bor", "bxor") and dtype.is_floating_point)


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """What moving bytes between the ranks of a host takes."""

    call_us: float = 4.0
    """A call from Python, and the first exchange."""
    exchange_us: float = 0.8
    """A further exchange: a cache line that travels from one core to another, and the look at it."""
    copy_us_per_mb: float = 60.0
    """Copying into shared memory, or out of another core's."""
    read_us_per_mb: float = 60.0
    """Reading another rank's bytes while reducing."""
    again_us_per_mb: float = 44.0
    """Writing what has just been read or computed to a second place."""


HOST = HostMemory()
MB = 1e6
SWITCH_US = 40.0
"""Until a rank that shares its processor with others runs again (the same machine, four ranks on two cores)."""


def host_memory(ranks: int, processors: int) -> HostMemory:
    """What to count with where so many ranks share so many processors."""
    if processors >= ranks:
        return HOST
    share = ranks / max(processors, 1)
    return HostMemory(
        call_us=HOST.call_us + SWITCH_US,
        exchange_us=SWITCH_US,
        copy_us_per_mb=HOST.copy_us_per_mb * share,
        read_us_per_mb=HOST.read_us_per_mb * share,
        again_us_per_mb=HOST.again_us_per_mb * share,
    )


def one_shot_us(nbytes: float, ranks: int, host: HostMemory = HOST) -> float:
    """All-reduce: every rank copies its input in and reads those of all others."""
    moved = host.copy_us_per_mb + (ranks - 1) * host.read_us_per_mb
    return host.call_us + nbytes / MB * moved


def two_shot_us(nbytes: float, ranks: int, host: HostMemory = HOST) -> float:
    """All-reduce: every rank copies in all but its part, reduces its part to two places, copies out the others'."""
    part = 1 / ranks
    moved = 2 * (1 - part) * host.copy_us_per_mb + (1 - part) * host.read_us_per_mb + part * host.again_us_per_mb
    return host.call_us + host.exchange_us + nbytes / MB * moved


def all_gather_us(nbytes: float, ranks: int, host: HostMemory = HOST) -> float:
    """nbytes: of one rank's part. Every rank copies it in, and to its own result, and the others' out."""
    moved = ranks * host.copy_us_per_mb + host.again_us_per_mb
    return host.call_us + nbytes / MB * moved


def reduce_scatter_us(nbytes: float, ranks: int, host: HostMemory = HOST) -> float:
    """nbytes: of the whole input. Every rank copies in what the others need, and reduces its part."""
    others = 1 - 1 / ranks
    return host.call_us + nbytes / MB * others * (host.copy_us_per_mb + host.read_us_per_mb)


def prefers_two_shot(nbytes: float, ranks: int, host: HostMemory = HOST) -> bool:
    """Whether an all-reduce of a size should take two exchanges. The same on all ranks, whatever they would measure."""
    return ranks > 1 and two_shot_us(nbytes, ranks, host) < one_shot_us(nbytes, ranks, host)


def crossing_bytes(ranks: int, host: HostMemory = HOST) -> float:
    """From which size two exchanges are faster; infinite where they never are."""
    if ranks < 2:
        return float("inf")
    per_byte = (one_shot_us(MB, ranks, host) - two_shot_us(MB, ranks, host) + host.exchange_us) / MB
    return host.exchange_us / per_byte if per_byte > 0 else float("inf")
