"""What one collective takes on a link: a fixed latency for the call, and its traffic at the link's bandwidth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from counterpoint.errors import OptionError
from counterpoint.ir.ops import Kind


@dataclass(frozen=True, kw_only=True)
class Link:
    """The connection between the ranks of a group, as a collective sees it."""

    latency_us: float
    """What a call takes whatever its size."""
    bandwidth_gbps: float
    """Gigabits a second that one rank sends."""

    def __post_init__(self) -> None:
        if not (0 <= self.latency_us < math.inf and 0 < self.bandwidth_gbps < math.inf):
            raise OptionError(f"no link is like {self}", next_step="give a latency >= 0 and a bandwidth > 0")

    def transfer_us(self, traffic_bytes: float) -> float:
        """The time that so many bytes travel."""
        return traffic_bytes * 8 / (self.bandwidth_gbps * 1e3)

    def call_us(self, traffic_bytes: float) -> float:
        """A whole call."""
        return self.latency_us + self.transfer_us(traffic_bytes)

    def bytes_in_us(self, time_us: float) -> float:
        """How much travels in a time."""
        return time_us * self.bandwidth_gbps * 1e3 / 8

    def rounded(self) -> Link:
        """The link with its latency and bandwidth rounded to powers of two.

        A measurement differs a little every time. Rounded, it mostly gives the same numbers, so that what was compiled
        is found in the cache again; sizes chosen by it lie within what the choice is insensitive to.
        """
        return Link(latency_us=_power_of_two(self.latency_us), bandwidth_gbps=_power_of_two(self.bandwidth_gbps))

    def __str__(self) -> str:
        return f"{self.latency_us:g} us, {self.bandwidth_gbps:g} Gbit/s"


def traffic_bytes(kind: Kind, nbytes: float, ranks: int) -> float:
    """What one rank sends in a collective over a ring, the best that is known for large payloads.

    nbytes: of the whole tensor, so what a gather receives and what a reduce-scatter is given.
    """
    if ranks < 2:
        return 0.0
    share = nbytes * (ranks - 1) / ranks
    # A ring all-reduce is a reduce-scatter and then a gather (Patarasuk and Yuan, 2009).
    return 2 * share if kind is Kind.ALL_REDUCE else share


def _power_of_two(value: float) -> float:
    return 2.0 ** round(math.log2(value)) if value > 0 else 0.0
