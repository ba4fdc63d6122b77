"""Which link a group has: measured and agreed on by all ranks, or else what is typical of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from counterpoint.cost.link import Link

Layout = tuple[int, ...]
"""The ranks of a group, counted from its first. Equal on all ranks of a regular mesh, where the ranks are not."""

TYPICAL: Mapping[str, Link] = MappingProxyType(
    {
        # gloo, two processes over loopback or a virtual Ethernet pair: 0.2-0.5 ms for 4 B to 4 KB, 19-22 ms for an
        # all-reduce of 16 MB (our measurement, torch 2.13).
        "cpu": Link(latency_us=400, bandwidth_gbps=6.5),
        # NCCL between nodes of 400 Gbit/s a GPU: some 30 us for a small call over 16 or more ranks (public results of
        # nccl-tests); bandwidth with the usual 80 % of the nominal one.
        "cuda": Link(latency_us=30, bandwidth_gbps=320),
    }
)
"""Links by device type, for groups that nobody has measured."""


def layout_of(ranks: Sequence[int]) -> Layout:
    """The layout of a group."""
    return tuple(rank - ranks[0] for rank in ranks)


def typical(device_type: str) -> Link:
    """The link that groups of such devices usually have; accelerators that we do not know count as one that we do."""
    return TYPICAL.get(device_type, TYPICAL["cuda"])


@dataclass(frozen=True)
class LinkTable:
    """Measured links by layout. All ranks hold one and the same table."""

    links: Mapping[Layout, Link] = field(default_factory=dict)

    def link(self, ranks: Sequence[int]) -> Link | None:
        """The measured link of a group, if it was measured."""
        return self.links.get(layout_of(ranks)) if ranks else None

    def with_link(self, ranks: Sequence[int], link: Link) -> LinkTable:
        """The table with one link more, or another one."""
        return LinkTable({**self.links, layout_of(ranks): link})

    @property
    def text(self) -> str:
        """Equal for equal tables; part of what identifies a compile."""
        return "; ".join(f"{','.join(map(str, layout))}: {link}" for layout, link in sorted(self.links.items()))
