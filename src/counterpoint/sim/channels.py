"""The network while a step is played: one queue a channel, channels side by side, links shared where asked for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_DONE_US = 1e-9
"""What rounding may leave of a transfer that is over."""


@dataclass(eq=False)
class Transfer:
    """One collective on its channel."""

    channel: str
    link: str
    """Transfers of equal link share it, where sharing is played."""
    us: float
    """How long it takes alone."""
    start_us: float = 0.0
    end_us: float = 0.0
    left_us: float = field(init=False)

    def __post_init__(self) -> None:
        self.left_us = self.us


class Channels:
    """Collectives of one channel follow each other; those of different channels run at once.

    Calls come in order of time.
    """

    def __init__(self, *, sharing: bool) -> None:
        self._sharing = sharing
        self._queues: dict[str, deque[Transfer]] = {}
        self._free: dict[str, float] = {}
        self._now = 0.0

    def post(self, transfer: Transfer, at_us: float) -> None:
        """Start a transfer as soon as its channel is free."""
        if not self._sharing:
            transfer.start_us = max(at_us, self._free.get(transfer.channel, 0.0))
            transfer.end_us = self._free[transfer.channel] = transfer.start_us + transfer.us
            return
        self._advance(at_us)
        queue = self._queues.setdefault(transfer.channel, deque())
        if not queue:
            transfer.start_us = at_us
        queue.append(transfer)

    def end_of(self, transfer: Transfer) -> float:
        """When a posted transfer is over. What is posted later must not change it, so ask when it is waited for."""
        if self._sharing:
            while transfer in self._queues[transfer.channel]:
                self._advance(float("inf"), until=transfer)
        return transfer.end_us

    def drained(self) -> float:
        """When everything is over."""
        if not self._sharing:
            return max(self._free.values(), default=0.0)
        self._advance(float("inf"))
        return self._now

    def _advance(self, at_us: float, until: Transfer | None = None) -> None:
        """Play until a moment, or until a transfer is over."""
        while True:
            active = [queue[0] for queue in self._queues.values() if queue]
            if not active:
                self._now = max(self._now, at_us) if at_us != float("inf") else self._now
                return
            crowd: dict[str, int] = {}
            for transfer in active:
                crowd[transfer.link] = crowd.get(transfer.link, 0) + 1
            step = min(transfer.left_us * crowd[transfer.link] for transfer in active)
            if self._now + step > at_us:
                self._play(active, crowd, at_us - self._now)
                self._now = at_us
                return
            self._play(active, crowd, step)
            self._now += step
            finished = self._finish(active)
            if until is not None and until in finished:
                return

    def _play(self, active: list[Transfer], crowd: dict[str, int], us: float) -> None:
        for transfer in active:
            transfer.left_us -= us / crowd[transfer.link]

    def _finish(self, active: list[Transfer]) -> list[Transfer]:
        finished = [transfer for transfer in active if transfer.left_us <= _DONE_US]
        for transfer in finished:
            transfer.end_us = self._now
            queue = self._queues[transfer.channel]
            queue.popleft()
            if queue:
                queue[0].start_us = self._now
        return finished
