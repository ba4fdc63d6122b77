"""What collectives in shared memory take on one host, and from which size two exchanges beat one.

Constants are of one machine (Xeon, two cores, float32, see benchmarks/bench_shared_memory.py); what they decide, the
crossing, lies within a factor of two elsewhere, where both ways take nearly the same.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """What moving bytes between the ranks of a host takes."""

    exchange_us: float = 1.5
    """From one rank's last byte written until another knows: a cache line that travels, and the calls around it."""
    copy_us_per_mb: float = 60.0
    """Copying into shared memory, or out of it."""
    read_us_per_mb: float = 60.0
    """Reading another rank's bytes while reducing."""


HOST = HostMemory()
MB = 1e6


def one_shot_us(nbytes: float, ranks: int, host: HostMemory = HOST) -> float:
    """Every rank copies its input in and reads those of all others."""
    moved = host.copy_us_per_mb + (ranks - 1) * host.read_us_per_mb
    return host.exchange_us + nbytes / MB * moved


def two_shot_us(nbytes: float, ranks: int, host: HostMemory = HOST) -> float:
    """Every rank copies in all but its part, reduces its part, copies the result in twice and the others' out."""
    part = 1 / ranks
    moved = host.copy_us_per_mb * (2 * (1 - part) + part) + (ranks - 1) * part * host.read_us_per_mb
    return 2 * host.exchange_us + nbytes / MB * moved


def prefers_two_shot(nbytes: float, ranks: int, host: HostMemory = HOST) -> bool:
    """Whether an all-reduce of a size should take two exchanges. The same on all ranks, whatever they measured."""
    return ranks > 1 and two_shot_us(nbytes, ranks, host) < one_shot_us(nbytes, ranks, host)
