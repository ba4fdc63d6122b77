"""The live group of a call."""

from __future__ import annotations

import torch.distributed as dist

from counterpoint._torch import process_group
from counterpoint.errors import GroupError


def sized_group(operator: str, name: str, size: int | None = None) -> dist.ProcessGroup:
    """The group of a name, of the size that the call was made for."""
    where = f"counterpoint::{operator}"
    try:
        group = process_group(name)
    except LookupError:
        raise GroupError(
            f"no group is named {name!r} in this process",
            where=where,
            next_step="create the group on every rank, and pass its group_name",
        ) from None
    if size is not None and group.size() != size:
        raise GroupError(
            f"group {name!r} has {group.size()} ranks, and the call was made for {size}",
            where=where,
            next_step="compile again for the groups that there are now",
        )
    return group
