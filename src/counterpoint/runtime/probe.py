"""What the ranks of a group can do with each other, found out by trying, each thing by itself.

capabilities = PROBES.of(group, torch.device("cpu"))     # a collective call the first time; then a lookup
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.distributed as dist

from counterpoint._torch import backend_name
from counterpoint.cost.capabilities import Capabilities, Capability, absent
from counterpoint.runtime import shared_memory
from counterpoint.runtime.locks import Locks
from counterpoint.runtime.pretend import pretends
from counterpoint.runtime.shared_memory.agree import host_identity
from counterpoint.runtime.symmetric_memory import probe_multicast, probe_symmetric_memory

_MESSAGES_BY: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "gloo": frozenset({"cpu"}),
        "mpi": frozenset({"cpu"}),
        "nccl": frozenset({"cuda"}),
        "xccl": frozenset({"xpu"}),
        "hccl": frozenset({"npu", "hpu"}),
    }
)
"""Backends whose messages travel by themselves, and from which memory (torch's table of backends)."""


def probe_messages(group: dist.ProcessGroup, device: torch.device) -> Capability:
    """Whether messages between ranks travel while the caller computes."""
    name = backend_name(group, device)
    if name is None:
        return absent(f"the group has no backend for {device.type}")
    if device.type not in _MESSAGES_BY.get(name, frozenset()):
        return absent(f"backend {name} is not known to send messages from {device.type} in the background")
    return Capability(True, f"backend {name} sends messages from {device.type} in the background")


def probe_shared_memory(group: dist.ProcessGroup, device: torch.device) -> Capability:
    """Whether ranks can read each other's memory on the CPU. A collective call of the group."""
    if device.type != "cpu":
        return absent(f"shared memory between processes is for the CPU, not for {device.type}")
    if pretends(group) or backend_name(group, device) is None:
        return absent("the group only pretends to communicate")
    found = shared_memory.probe(group)
    return Capability(found.available, found.reason)


def probe(group: dist.ProcessGroup, device: torch.device) -> Capabilities:
    """Look at everything. A collective call of the group."""
    shared, symmetric = probe_shared_memory(group, device), probe_symmetric_memory(group, device)
    return Capabilities(
        messages=probe_messages(group, device),
        shared_memory=shared,
        symmetric_memory=symmetric,
        multicast=probe_multicast(group, symmetric),
        processors=shared_memory.workspace_of(group).processors if shared else 0,
        hosts=hosts_of(group),
    )


def hosts_of(group: dist.ProcessGroup) -> tuple[int, ...]:
    """For each rank the number of its host, counted as they come. A collective call of the group."""
    if pretends(group):
        return ()
    named: list[str] = [""] * group.size()
    dist.all_gather_object(named, host_identity(), group=group)
    return tuple(list(dict.fromkeys(named)).index(name) for name in named)


@dataclass(frozen=True)
class _Found:
    group: weakref.ref[dist.ProcessGroup]
    capabilities: Capabilities


class Probes:
    """What was found for the groups of this process."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], _Found] = {}
        self._lock = threading.Lock()
        self._by_group = Locks()

    def of(self, group: dist.ProcessGroup, device: torch.device) -> Capabilities:
        """The capabilities of a group for tensors on a device. The first call for a group is a collective one."""
        with self._by_group.of(group.group_name):
            with self._lock:
                found = self._found.get((group.group_name, device.type))
            if found is not None and found.group() is group:
                return found.capabilities
            return self.settle(group, device, probe(group, device))

    def knows(self, group: dist.ProcessGroup) -> bool:
        """Whether the ranks of the group have probed before, for any kind of device."""
        with self._lock:
            return any(found.group() is group for found in self._found.values())

    def settle(self, group: dist.ProcessGroup, device: torch.device, capabilities: Capabilities) -> Capabilities:
        """Use these from now on, on every rank of the group alike: for who knows better, and for comparisons."""
        with self._lock:
            self._found[group.group_name, device.type] = _Found(weakref.ref(group), capabilities)
        return capabilities


PROBES = Probes()
"""What the operators decide by."""
