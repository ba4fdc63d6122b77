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
