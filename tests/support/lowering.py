"""What ranks may have found out about each other, for tests of the pass that decides by it."""

from __future__ import annotations

from collections.abc import Mapping

from counterpoint.cost.capabilities import Capabilities, Capability, CapabilityTable, absent

YES = Capability(True, "so the test says")
NO = absent("so the test says")


def one_host(ranks: int, processors: int | None = None) -> Capabilities:
    """Ranks that share the memory of one host; a processor each, if nothing else is said."""
    return Capabilities(
        messages=YES,
        shared_memory=YES,
        symmetric_memory=NO,
        processors=ranks if processors is None else processors,
        hosts=(0,) * ranks,
    )


def two_hosts(ranks: int) -> Capabilities:
    """Half of the ranks on each of two hosts."""
    hosts = tuple(rank // (ranks // 2) for rank in range(ranks))
    return Capabilities(messages=YES, shared_memory=NO, symmetric_memory=NO, processors=0, hosts=hosts)


def peer_devices(ranks: int, *, multicast: bool = False) -> Capabilities:
    """Devices that reach each other's memory."""
    return Capabilities(
        messages=YES,
        shared_memory=NO,
        symmetric_memory=YES,
        multicast=YES if multicast else NO,
        hosts=(0,) * ranks,
    )


def table_of(found: Mapping[str, Capabilities], device_type: str = "cpu") -> CapabilityTable:
    """By group."""
    return CapabilityTable({(name, device_type): capabilities for name, capabilities in found.items()})
