"""How long a collective holds its channel, by the cost model or by a table of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from counterpoint.ir.ops import Kind


class CollectiveCosts(Protocol):
    """What the tunnel asks of a cost model."""

    def collective_us(self, kind: Kind, nbytes: float, ranks: Sequence[int], *, device_type: str) -> float:
        """The time of one collective. nbytes: of the whole tensor, so what a gather receives."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The emulated network."""

    costs: CollectiveCosts
    contention_sms: int = 0
    """On a GPU: how many multiprocessors a collective keeps busy, as NCCL's kernels do. On a CPU any positive number
    keeps one core busy with copies."""

    def us(self, kind: Kind, nbytes: float, ranks: Sequence[int], device_type: str) -> float:
        """How long one collective takes. A group of one communicates with nobody."""
        if len(ranks) < 2:
            return 0.0
        return self.costs.collective_us(kind, nbytes, ranks, device_type=device_type)
