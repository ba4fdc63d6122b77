"""Whether the devices of a group can reach each other's memory through torch's symmetric memory."""

from __future__ import annotations

import torch
import torch.distributed as dist

from counterpoint._torch import backend_name, has_multicast, symmetric_workspace
from counterpoint.cost.capabilities import Capability, absent

_FIRST_BYTES = 1 << 20


def probe_multicast(group: dist.ProcessGroup, symmetric_memory: Capability) -> Capability:
    """Whether the switch between the devices adds up and copies. A collective call of the group."""
    if not symmetric_memory:
        return absent("without symmetric memory there is nothing to add up")
    if not has_multicast(symmetric_workspace(group.group_name, _FIRST_BYTES)):
        return absent("the switch cannot, or there is none")
    return Capability(True, "the switch adds up what the ranks send")


def probe_symmetric_memory(group: dist.ProcessGroup, device: torch.device) -> Capability:
    """Whether a buffer that every rank of the group maps can be made. A collective call of the group."""
    if device.type != "cuda":
        return absent(f"torch's symmetric memory is for CUDA, not for {device.type}")
    if backend_name(group, device) in (None, "fake"):
        return absent("the group only pretends to communicate")
    if group.size() == 1:
        return absent("a group of one has nobody to share with")
    try:
        workspace = symmetric_workspace(group.group_name, _FIRST_BYTES)
    except RuntimeError as problem:
        # The message's first line; below it stands a C++ stack.
        return absent(f"torch cannot set it up: {str(problem).splitlines()[0]}")
    return Capability(True, f"{workspace.world_size} ranks map each other's memory")
