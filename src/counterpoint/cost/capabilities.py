"""What the ranks of a group can do with each other, as data that decisions are made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True)
class Capability:
    """One thing that may be possible."""

    available: bool
    reason: str
    """Why not, or what was found, in words."""

    def __bool__(self) -> bool:
        return self.available


def absent(reason: str) -> Capability:
    """What is not possible, and why."""
    return Capability(False, reason)


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What was found for a group and a kind of device: each probed by itself, the same on all ranks of the group."""

    messages: Capability
    """Ranks send each other messages that travel while they compute."""
    shared_memory: Capability
    """Ranks of one host read each other's memory in place, on the CPU."""
    symmetric_memory: Capability
    """Devices read and write each other's memory through torch's symmetric memory."""
    multicast: Capability = Capability(False, "not probed")
    """The switch between the devices adds up and copies what they send."""
    processors: int = 0
    """Processors that the ranks have together, where they share memory; 0 where that is not known."""
    hosts: tuple[int, ...] = ()
    """For each rank of the group, in its order, the number of its host; empty where that is not known."""

    @property
    def text(self) -> str:
        """Equal where equal decisions follow, on all ranks of a regular mesh; part of what identifies a compile."""
        found = {
            "messages": self.messages,
            "shared memory": self.shared_memory,
            "symmetric memory": self.symmetric_memory,
            "multicast": self.multicast,
        }
        names = [name for name, capability in found.items() if capability]
        return f"{', '.join(names) or 'nothing'}; {self.processors} processors; hosts {self.hosts}"


NOTHING = Capabilities(
    messages=absent("not probed"), shared_memory=absent("not probed"), symmetric_memory=absent("not probed")
)
"""What to assume of a group that nobody has looked at."""


@dataclass(frozen=True)
class CapabilityTable:
    """What was found, by group name and kind of device. All ranks of a group hold the same about it."""

    found: Mapping[tuple[str, str], Capabilities] = field(default_factory=dict)

    def of(self, group: str, device_type: str) -> Capabilities:
        """The capabilities of a group; `NOTHING` where nobody has looked."""
        return self.found.get((group, device_type), NOTHING)

    @property
    def text(self) -> str:
        """Equal for equal tables; part of what identifies a compile."""
        return "\n".join(f"{group} on {device}: {found.text}" for (group, device), found in sorted(self.found.items()))


def members_by_host(hosts: Sequence[int]) -> int | None:
    """How many ranks each host holds, where all hold as many, there are several of both, and hosts are not mixed.

    That is what a collective inside the hosts and then across them needs: ranks in order, host by host.
    """
    counts = Counter(hosts)
    in_order = all(one <= other for one, other in pairwise(hosts))
    if len(counts) < 2 or not in_order or len(set(counts.values())) > 1:
        return None
    members = counts[hosts[0]]
    return members if members > 1 else None
