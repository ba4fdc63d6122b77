"""A captured graph with what it takes to understand it elsewhere: its place in a world, its groups, its torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

import torch
from torch import fx

from counterpoint.errors import CaptureError

Role = Literal["forward", "backward", "step", "inference"]
"""What the graph computes; a step is forward, loss, backward and perhaps the optimizer in one graph."""
Stage = Literal["aot", "post_grad", "canonical"]
"""How far the compiler had brought it: after autograd, after its own rewrites, or in our canonical form."""


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """One rank's graph, self-contained: it can be saved, sent, loaded and transformed where no process group exists."""

    gm: fx.GraphModule
    name: str
    role: Role
    world_size: int
    rank: int = 0
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Global ranks of every process group that the graph names, in group order."""
    stage: Stage = "aot"
    torch_version: str = torch.__version__
    """The torch that captured the graph."""

    def __post_init__(self) -> None:
        groups = {name: tuple(ranks) for name, ranks in self.groups.items()}
        object.__setattr__(self, "groups", MappingProxyType(groups))
        for problem in self._problems():
            raise CaptureError(problem, where=f"captured graph {self.name!r}", next_step="correct the field")

    def _problems(self) -> list[str]:
        problems = []
        if self.role not in get_args(Role):
            problems.append(f"role {self.role!r} is none of {', '.join(get_args(Role))}")
        if self.stage not in get_args(Stage):
            problems.append(f"stage {self.stage!r} is none of {', '.join(get_args(Stage))}")
        if not 0 <= self.rank < self.world_size:
            problems.append(f"rank {self.rank} is not in a world of {self.world_size}")
        for name, ranks in self.groups.items():
            if not ranks or len(set(ranks)) != len(ranks):
                problems.append(f"group {name!r} is empty or names a rank twice")
            elif min(ranks) < 0 or max(ranks) >= self.world_size:
                problems.append(f"group {name!r} has ranks outside a world of {self.world_size}")
        return problems
