"""Ranks that fail their peers in the middle of a pipelined operator."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint.cost.capabilities import Capabilities, Capability, absent
from counterpoint.errors import CounterpointError
from counterpoint.ir.pipelined import OPS
from counterpoint.runtime import shared_memory
from counterpoint.runtime.pipelined import exchange, operators  # noqa: F401  the second registers what is called
from counterpoint.runtime.probe import PROBES

TIMEOUT = timedelta(seconds=1)


def group_with(lowering: str) -> dist.ProcessGroup:
    """A group of all ranks that gives up soon, and runs its calls in one way."""
    if lowering == "shared_memory":
        # Loading the kernels takes longer than the group would wait.
        shared_memory.workspace_of(dist.group.WORLD)
    group = dist.new_group(timeout=TIMEOUT)
    given = {name: absent("not in this test") for name in ("messages", "shared_memory", "symmetric_memory")}
    given[lowering] = Capability(True, "asked for by the test")
    PROBES.settle(group, torch.device("cpu"), Capabilities(**given))
    return group


def call(operator: str, group: dist.ProcessGroup) -> Any:
    """One call, in four chunks."""
    x, w, name, ranks = torch.ones(8, 4), torch.ones(4, 4), group.group_name, group.size()
    if operator == "all_gather_matmul":
        return OPS.all_gather_matmul.default(x, [w], [None], [x.dtype], 0, True, 4, ranks, name, False)
    if operator == "matmul_reduce_scatter":
        return OPS.matmul_reduce_scatter.default([x], [w], None, "sum", 0, 4, ranks, name)
    if operator == "all_to_all_matmul":
        return OPS.all_to_all_matmul.default(x, [w], [None], [x.dtype], 4, ranks, name, False)
    if operator == "matmul_all_to_all":
        return OPS.matmul_all_to_all.default([x], [w], None, 4, ranks, name)
    return OPS.matmul_all_reduce.default([x], [w], None, "sum", 4, name)


def error_of(operator: str, group: dist.ProcessGroup) -> tuple[str, str]:
    """Name and text of the error that a call ends in."""
    try:
        call(operator, group)
    except CounterpointError as error:
        return type(error).__name__, str(error)
    return "no error", ""


def stalled(operator: str, lowering: str) -> tuple[str, str]:
    """Rank 0 makes a call that rank 1 never makes."""
    group = group_with(lowering)
    if lowering == "shared_memory":
        # The memory is set up by all ranks together; it is the call itself that rank 1 does not make.
        shared_memory.workspace_of(group)
    return error_of(operator, group) if dist.get_rank() == 0 else ("not called", "")


def killed(operator: str, lowering: str) -> Any:
    """Rank 1 is killed after a part of its messages, or before it has published anything."""
    group = group_with(lowering)
    if lowering == "shared_memory":
        shared_memory.workspace_of(group)
    if dist.get_rank() == 1:
        _die_in_the_middle()
    return call(operator, group)


def _die_in_the_middle() -> None:
    send = exchange._HostExchange.send

    def send_and_die(self: Any, step: int, message: Tensor, target: int) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        send(self, step, message, target)

    def publish_and_die(self: Any, parts: int = 1) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    exchange._HostExchange.send = send_and_die  # type: ignore[method-assign]
    shared_memory.Loan.publish = publish_and_die  # type: ignore[method-assign]
