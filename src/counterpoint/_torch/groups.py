"""Live process groups: by name, what they were made with, and what serves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

# Named as text, because its parameter type is another one in each version.
resolve_group: Callable[[str], dist.ProcessGroup] = getattr(c10d, "_resolve_process_group")  # noqa: B009
"""The group of a name; a RuntimeError, ValueError or KeyError where there is none."""


def process_group(name: str) -> dist.ProcessGroup:
    """The registered process group of a name; LookupError where none has it."""
    try:
        return resolve_group(name)
    except (RuntimeError, ValueError, KeyError) as error:
        raise LookupError(name) from error


def process_group_ranks(name: str) -> tuple[int, ...]:
    """The global ranks of a registered process group; LookupError where no group has the name."""
    return tuple(dist.get_process_group_ranks(process_group(name)))


def group_timeout_s(group: dist.ProcessGroup | None) -> float:
    """After what time a collective of the group gives up; torch's default where its backend does not say."""
    chosen: Any = group if group is not None else dist.group.WORLD
    try:
        timeout = chosen._get_backend(torch.device("cpu")).options._timeout
    except (RuntimeError, AttributeError):
        # Groups of accelerators have no backend for the CPU; some backends keep no options.
        timeout = c10d.default_pg_timeout
    return float(timeout.total_seconds())


def backend_name(group: dist.ProcessGroup, device: torch.device) -> str | None:
    """The backend that serves a group's tensors on a device, in lower case; None where none does."""
    try:
        name: str = group._get_backend(device).name()
    except (RuntimeError, NotImplementedError):
        return None
    return name.lower()


def group_sequence(name: str) -> int | None:
    """How many collectives this rank has started in a group; None where its backend does not count them."""
    try:
        # Left out of the type stubs of some versions.
        group: Any = process_group(name)
        number: int = group._get_sequence_number_for_group()
    except (LookupError, RuntimeError, AttributeError):
        return None
    return number


def default_store() -> Any:
    """The store that all ranks of the world share."""
    return c10d._get_default_store()
