"""Messages between the ranks of a group, one sent and one received a step, that travel while the caller computes.

Step i of a rank sends to one peer and receives from another, whose step i is the other half of it. All steps are
posted as early as they can be, and in the same order on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch.distributed as dist
from torch import Tensor

from counterpoint.runtime.pipelined.arithmetic import as_sent
from counterpoint.runtime.pipelined.failures import failing_as

_TAG = 0x6370
"""Keeps these messages apart from those of a program that sends some itself, where the backend tells them apart."""


class Inbox(NamedTuple):
    """Where the message of a step arrives."""

    buffer: Tensor
    source: int


class Exchange(Protocol):
    """The steps of one call."""

    def send(self, step: int, message: Tensor, target: int) -> None:
        """Send the message of a step; it must not change until `finish`."""

    def receive(self, step: int) -> None:
        """Return when the message of a step is in its buffer, or will be for what is computed next on its device."""

    def finish(self) -> None:
        """Return when no message is used any more."""


def open_exchange(group: dist.ProcessGroup, where: str, inboxes: Sequence[Inbox]) -> Exchange:
    """The exchange for the memory that the messages lie in."""
    on_host = all(inbox.buffer.device.type == "cpu" for inbox in inboxes)
    return _HostExchange(group, where, inboxes) if on_host else _DeviceExchange(group, where, inboxes)


class _HostExchange:
    """Every message for itself: receives are posted first, for messages travel when both ends are ready."""

    def __init__(self, group: dist.ProcessGroup, where: str, inboxes: Sequence[Inbox]) -> None:
        self._group, self._where = group, where
        self._arriving = [
            dist.irecv(as_sent(buffer), group=group, group_src=source, tag=_TAG) for buffer, source in inboxes
        ]
        self._leaving: list[Any] = []

    def send(self, step: int, message: Tensor, target: int) -> None:
        with failing_as(self._where, self._group):
            self._leaving.append(dist.isend(as_sent(message), group=self._group, group_dst=target, tag=_TAG))

    def receive(self, step: int) -> None:
        with failing_as(self._where, self._group):
            _wait(self._arriving[step])

    def finish(self) -> None:
        with failing_as(self._where, self._group):
            for work in self._leaving:
                _wait(work)


class _DeviceExchange:
    """Both messages of a step at once: on a device they are one kernel, which ends when both are through."""

    def __init__(self, group: dist.ProcessGroup, where: str, inboxes: Sequence[Inbox]) -> None:
        self._group, self._where, self._inboxes = group, where, inboxes
        self._steps: dict[int, list[Any]] = {}

    def send(self, step: int, message: Tensor, target: int) -> None:
        inbox = self._inboxes[step]
        both = [
            dist.P2POp(dist.isend, as_sent(message), group=self._group, tag=_TAG, group_peer=target),
            dist.P2POp(dist.irecv, as_sent(inbox.buffer), group=self._group, tag=_TAG, group_peer=inbox.source),
        ]
        with failing_as(self._where, self._group):
            self._steps[step] = dist.batch_isend_irecv(both)

    def receive(self, step: int) -> None:
        with failing_as(self._where, self._group):
            for work in self._steps.pop(step):
                _wait(work)

    def finish(self) -> None:
        for step in list(self._steps):
            self.receive(step)


def _wait(work: Any) -> None:
    if work is None or not work.wait():
        raise RuntimeError("the message was given up")
