"""Whether the devices of a group can reach each other's memory through torch's symmetric memory."""

from __future__ import annotations

import torch
import torch.distributed as dist

from counterpoint.cost.capabilities import Capability, absent


def probe_symmetric_memory(group: dist.ProcessGroup, device: torch.device) -> Capability:
    """Whether a buffer that every rank of the group reaches can be made. A collective call of the group."""
    return absent("not there yet")
