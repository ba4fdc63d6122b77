"""Process groups as data: which ranks a group name means. Nothing here touches a live process group."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from counterpoint.errors import GroupError


@dataclass(frozen=True)
class Group:
    """The group of one collective, as the graph names it."""

    key: Hashable
    """Equal keys mean the same group."""
    name: str | None = None
    """The registered name; None when the graph computes the group."""
    size: int | None = None
    """Number of ranks, where the graph or the group table tells it."""

    def __str__(self) -> str:
        return self.name if self.name is not None else str(self.key)


@dataclass(frozen=True)
class GroupTable(Mapping[str, tuple[int, ...]]):
    """Global ranks by group name, as they were when the graph was captured."""

    ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> tuple[int, ...]:
        try:
            return self.ranks[name]
        except KeyError:
            raise GroupError(
                f"no group is named {name!r}; known: {', '.join(map(repr, self.ranks)) or 'none'}",
                next_step="initialise torch.distributed and create the group before compiling, "
                "or give its ranks in the group table",
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.ranks)

    def __len__(self) -> int:
        return len(self.ranks)

    def __contains__(self, name: object) -> bool:
        return name in self.ranks

    def seen_from(self, rank: int, name: str, world_size: int) -> tuple[int, ...]:
        """The ranks that a name means on a given rank.

        In an SPMD program every rank calls its own subgroup by a name of the same place in the program. When the table,
        written on one rank, holds another rank's group, that group is moved over the world like a tile of a mesh: with
        "tp" as (0, 1), rank 3 of 4 sees (2, 3); with "dp" as (0, 2) it sees (1, 3).
        """
        ranks = self[name]
        if rank in ranks:
            return ranks
        shape = [member - ranks[0] for member in ranks]
        covered: set[int] = set()
        for first in range(world_size):
            if first in covered:
                continue
            tile = tuple(first + offset for offset in shape)
            covered.update(tile)
            if rank in tile and tile[-1] < world_size:
                return tile
        raise GroupError(
            f"rank {rank} of {world_size} has no group {name!r}, which the table gives as {ranks}",
            next_step="list every subgroup in the table",
        )

    @property
    def world_size(self) -> int:
        """One more than the highest rank of any group."""
        return 1 + max((rank for ranks in self.ranks.values() for rank in ranks), default=-1)


def group_of(value: Any, size: int | None = None) -> Group:
    """The group that a group argument means: a name, a process group object, or a node that computes one."""
    if isinstance(value, Node):
        held = value.meta.get("val")
        name = getattr(held, "group_name", None)
        if isinstance(name, str):
            return Group(key=name, name=name, size=size)
        return Group(key=value, size=size)
    name = value if isinstance(value, str) else getattr(value, "group_name", None)
    if not isinstance(name, str):
        raise GroupError(
            f"{value!r} is not a process group, nor the name of one",
            next_step="pass the group's name, `group.group_name`",
        )
    return Group(key=name, name=name, size=size)
