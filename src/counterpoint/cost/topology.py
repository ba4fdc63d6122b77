"""What a cluster is made of: levels of links around the ranks, and the processor of each rank.

A level is a ring of neighbourhood: inside a node, between nodes. Ranks are numbered node by node, so the level that a
group uses follows from its ranks. Topologies are data: presets by name, or a TOML file of one's own:

    name = "two racks"
    processor = "h100"

    [[levels]]
    name = "node"
    ranks = 8
    latency_us = 3.4
    bandwidth_gbps = 2966

    [[levels]]
    name = "network"
    latency_us = 14
    bandwidth_gbps = 384
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from counterpoint.cost.link import Link
from counterpoint.cost.processor import Processor
from counterpoint.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class Level:
    """Everything that one rank reaches over one kind of link."""

    name: str
    ways: tuple[Link, ...]
    """Ways of sending over this level, the quickest to start first and the widest last. A latency is that of one step
    between neighbours. NCCL has three, its protocols LL, LL128 and Simple."""
    ranks: int | None = None
    """Ranks inside one unit of the level; None for the outermost, which holds them all."""
    ports: int | None = None
    """Links to this level that one unit of the level below has; None: every rank has its own."""
    peer_access: bool = False
    """Ranks can read and write each other's memory."""
    multicast: bool = False
    """The switch can add up and copy to all what the ranks send."""
    copy_engines: int = 0
    """Engines beside the processor that can carry transfers."""

    @property
    def link(self) -> Link:
        """The widest way."""
        return self.ways[-1]

    def unit_of(self, rank: int) -> int:
        """Which unit of the level a rank lies in."""
        return 0 if self.ranks is None else rank // self.ranks

    @property
    def text(self) -> str:
        """What is known of the level, in one line."""
        size = f"{self.ranks} ranks" if self.ranks is not None else "all ranks"
        facts = [f"{self.name} ({size})", *(str(way) for way in self.ways)]
        facts += [f"{self.ports} ports a unit"] if self.ports is not None else []
        facts += ["peer access"] if self.peer_access else []
        facts += ["multicast"] if self.multicast else []
        facts += [f"{self.copy_engines} copy engines"] if self.copy_engines else []
        return ", ".join(facts)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A cluster, as far as costs go. The same on all ranks."""

    name: str
    levels: tuple[Level, ...]
    """From the inside out; each holds whole units of the one before."""
    processor: Processor
    """That of every rank."""
    device_type: str = "cuda"
    call_us: tuple[float, ...] = (0.0,)
    """What a call takes before anything is sent, for each way."""

    def __post_init__(self) -> None:
        _check(self)

    def level_of(self, ranks: Sequence[int]) -> Level:
        """The innermost level whose units hold all of these ranks; the outermost where none does."""
        for level in self.levels:
            if len({level.unit_of(rank) for rank in ranks}) <= 1:
                return level
        return self.levels[-1]

    def levels_of(self, ranks: Sequence[int]) -> tuple[Level, ...]:
        """The levels over which the ranks differ, from the inside out; none for a group of one."""
        found, before = [], len(set(ranks))
        for level in self.levels:
            units = len({level.unit_of(rank) for rank in ranks})
            if units < before:
                found.append(level)
            before = units
        return tuple(found)

    @property
    def text(self) -> str:
        """Everything that costs depend on, in lines that are equal for equal topologies. Identifies a compile."""
        calls = ", ".join(f"{call:g}" for call in self.call_us)
        head = f"{self.name}: {self.device_type}, {self.processor.text}, calls {calls} us"
        return "\n".join([head, *(f"  {level.text}" for level in self.levels)])

    def __str__(self) -> str:
        return self.name


def _check(topology: Topology) -> None:
    for problem in _problems(topology):
        raise OptionError(problem, where=f"topology {topology.name}", next_step="see counterpoint.cost.topology")


def _problems(topology: Topology) -> list[str]:
    if not topology.levels:
        return ["a topology needs at least one level"]
    found = []
    sizes = [level.ranks for level in topology.levels[:-1]]
    if topology.levels[-1].ranks is not None:
        found.append("the outermost level holds all ranks, so it has no `ranks`")
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or any(size < 2 for size in known):
        found.append("every level but the outermost needs `ranks` of 2 or more")
    elif any(outer % inner or outer == inner for inner, outer in pairwise(known)):
        found.append("the ranks of each level must be a multiple of those of the level inside it")
    if any(len(level.ways) != len(topology.call_us) for level in topology.levels):
        found.append(f"each level needs as many ways of sending as `call_us` has entries, {len(topology.call_us)}")
    if any(not (0 <= call < math.inf) for call in topology.call_us):
        found.append("a call cannot take less than no time")
    if any(level.ports is not None and level.ports < 1 for level in topology.levels):
        found.append("a unit needs at least one port")
    return found
