"""What the ranks of a group can do with each other, as data that decisions are made from."""

from __future__ import annotations

from dataclasses import dataclass


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


NOTHING = Capabilities(
    messages=absent("not probed"), shared_memory=absent("not probed"), symmetric_memory=absent("not probed")
)
"""What to assume of a group that nobody has looked at."""
