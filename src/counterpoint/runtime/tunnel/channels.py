"""Channels: where collectives of one group queue up, and how their time passes on a CPU and on a GPU.

On a CPU the caller's clock is the compute stream. A collective begins when it is issued or when the one before it on
the channel ends, whichever is later, and whoever waits sleeps until its end: that costs no core, so overlap is real.

On a GPU a channel is a stream. It waits for what the caller's stream holds so far, then is held for the time that the
network takes, while a second stream moves the data; the collective is complete when both are.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import torch

from counterpoint.errors import GroupError

MOST_BLOCKS = 1024
"""More multiprocessors than any GPU has."""

Move = Callable[[], None]
"""Moves the data of a collective within this rank."""


class Ticket(Protocol):
    """A collective on its way."""

    def wait(self) -> float:
        """Return once its result may be read by the caller's stream; how many microseconds the host stood waiting."""

    def done(self) -> bool:
        """Whether it is complete by now."""


class Channel(ABC):
    """Collectives of one group, one after the other."""

    @abstractmethod
    def launch(self, move: Move, duration_us: float, contention: int) -> Ticket:
        """Begin a collective."""


class HostTicket:
    """Complete at a time of the host's clock."""

    def __init__(self, end_s: float, busy: threading.Thread | None) -> None:
        self.end_s, self.busy = end_s, busy

    def wait(self) -> float:
        began = time.perf_counter()
        while (left := self.end_s - time.perf_counter()) > 0:
            time.sleep(left)
        if self.busy is not None:
            self.busy.join()
        return (time.perf_counter() - began) * 1e6

    def done(self) -> bool:
        return time.perf_counter() >= self.end_s


class HostChannel(Channel):
    """A channel between CPUs."""

    def __init__(self) -> None:
        self._free_s = 0.0
        self._lock = threading.Lock()

    def launch(self, move: Move, duration_us: float, contention: int) -> HostTicket:
        move()
        with self._lock:
            begin_s = max(self._free_s, time.perf_counter())
            self._free_s = end_s = begin_s + duration_us / 1e6
        return HostTicket(end_s, _occupy(begin_s, end_s) if contention else None)


def _occupy(begin_s: float, end_s: float) -> threading.Thread:
    """Keep one core busy with copies, as a network stack does."""

    def copy() -> None:
        source, target = torch.empty(2, 1 << 18)
        time.sleep(max(0.0, begin_s - time.perf_counter()))
        while time.perf_counter() < end_s:
            target.copy_(source)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


class DeviceTicket:
    """Complete when an event of the device has passed."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def wait(self) -> float:
        torch.cuda.current_stream().wait_event(self.event)
        return 0.0

    def done(self) -> bool:
        return bool(self.event.query())


class DeviceChannel(Channel):
    """A channel between GPUs."""

    def __init__(self, device: torch.device) -> None:
        try:
            from counterpoint.runtime.tunnel import hold_kernel
        except ImportError as error:
            raise GroupError(
                f"on {device} the tunnel holds streams with a Triton kernel, and Triton cannot be imported: {error}",
                where="wind tunnel",
                next_step="install the triton that belongs to the torch in use, or run on the CPU",
            ) from error
        self.device = device
        self._holds = hold_kernel.Holds(device, MOST_BLOCKS)
        # Of higher priority than compute: a multiprocessor that becomes free goes to them first.
        self._link, self._mover = (torch.cuda.Stream(device, priority=-1) for _ in range(2))

    def launch(self, move: Move, duration_us: float, contention: int) -> DeviceTicket:
        self._holds.note()
        self._link.wait_event(torch.cuda.current_stream(self.device).record_event())
        # The mover starts with the link, not before: data does not move while earlier collectives hold the channel.
        self._mover.wait_event(self._link.record_event())
        with torch.cuda.stream(self._mover):
            move()
        with torch.cuda.stream(self._link):
            self._holds.hold(duration_us, min(max(1, contention), MOST_BLOCKS))
        self._link.wait_event(self._mover.record_event())
        return DeviceTicket(self._link.record_event())


def channel_on(device: torch.device) -> Channel:
    """A new channel for collectives on tensors of this device."""
    return DeviceChannel(device) if device.type == "cuda" else HostChannel()
