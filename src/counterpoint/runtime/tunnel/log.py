"""What went through the tunnel: one record a call, and what they add up to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class Call(NamedTuple):
    """One collective. Times on the host's clock; on a GPU the waiting is the device's, and not known here."""

    kind: str
    channel: str
    nbytes: int
    duration_us: float
    """What the emulated network takes."""
    issued_us: float
    exposed_us: float
    """How long somebody stood waiting for it."""


@dataclass(frozen=True)
class Summary:
    """Calls by kind."""

    kind: str
    calls: int
    nbytes: int
    duration_us: float
    exposed_us: float


@dataclass
class CallLog:
    """Collects calls; they are complete once they have been waited for."""

    _calls: list[Call] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, call: Call) -> int:
        """Take down a call; returns its number."""
        with self._lock:
            self._calls.append(call)
            return len(self._calls) - 1

    def exposed(self, number: int, waited_us: float) -> None:
        """Somebody stood waiting for a call."""
        with self._lock:
            # The log may have been cleared since; a part of a coalesced call has no number of its own.
            if 0 <= number < len(self._calls):
                call = self._calls[number]
                self._calls[number] = call._replace(exposed_us=call.exposed_us + waited_us)

    def clear(self) -> None:
        """Forget all calls, as after a warm-up."""
        with self._lock:
            self._calls.clear()

    def __iter__(self) -> Iterator[Call]:
        with self._lock:
            return iter(list(self._calls))

    def __len__(self) -> int:
        return len(self._calls)

    def summary(self) -> tuple[Summary, ...]:
        """Totals by kind, in order of first use."""
        by_kind: dict[str, list[Call]] = {}
        for call in self:
            by_kind.setdefault(call.kind, []).append(call)
        return tuple(
            Summary(
                kind=kind,
                calls=len(calls),
                nbytes=sum(call.nbytes for call in calls),
                duration_us=sum(call.duration_us for call in calls),
                exposed_us=sum(call.exposed_us for call in calls),
            )
            for kind, calls in by_kind.items()
        )
