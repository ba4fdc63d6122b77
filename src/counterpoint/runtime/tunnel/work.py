"""The handle that torch gets for an emulated collective."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint.runtime.tunnel.channels import Ticket
from counterpoint.runtime.tunnel.log import CallLog


class TunnelWork(dist.Work):
    """Complete when its ticket is; waiting is taken down in the log."""

    def __init__(self, ticket: Ticket, results: list[Tensor], held: list[Tensor], log: CallLog, number: int) -> None:
        super().__init__()
        self._ticket, self._results, self._log, self._number = ticket, results, log, number
        # What is read on another stream must not be freed, and its memory given away, before somebody has waited.
        self._held = held

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until the result may be read."""
        self._log.exposed(self._number, self._ticket.wait())
        self._held = []
        return True

    def synchronize(self) -> None:
        """The same, for callers that only want their stream to wait."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the emulated network is done with it."""
        return self._ticket.done()

    def is_success(self) -> bool:
        """Emulated collectives do not fail."""
        return True

    def exception(self) -> Any:
        """Emulated collectives do not fail."""
        return None

    def result(self) -> list[Tensor]:
        """The tensors that it writes."""
        return self._results

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """For hooks, such as those of DDP's reducer, which may not block the thread that asks."""
        on_device = any(tensor.is_cuda for tensor in self._results)
        devices: Any = sorted({tensor.device for tensor in self._results}, key=str) if on_device else None
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future(devices=devices)
        if on_device:
            # A future of device tensors is set at once, and orders streams by itself.
            self._ticket.wait()
            future.set_result(self._results)
        else:
            threading.Thread(target=self._complete, args=(future,), daemon=True).start()
        return future

    def _complete(self, future: torch.futures.Future[list[Tensor]]) -> None:
        self._ticket.wait()
        future.set_result(self._results)
