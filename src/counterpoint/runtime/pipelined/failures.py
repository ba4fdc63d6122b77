"""What becomes of an error of the network below."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from counterpoint.errors import CommunicationError


@contextmanager
def failing_as(operator: str, group: dist.ProcessGroup) -> Iterator[None]:
    """Say which operator and group an error of the network belongs to."""
    try:
        yield
    except RuntimeError as problem:
        raise CommunicationError(
            f"communication in group {group.group_name!r} of {group.size()} ranks failed: {problem}",
            where=f"counterpoint::{operator}, rank {group.rank()} of the group",
            next_step="look at the output of the other ranks: one of them has ended, or is stuck elsewhere",
        ) from problem
