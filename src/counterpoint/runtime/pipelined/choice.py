"""Which lowering runs a call: a pure function of the call and of what the group can do, the same on every rank."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from counterpoint.cost.capabilities import Capabilities
from counterpoint.runtime.pipelined.gathers import Gather, ScaledFactor
from counterpoint.runtime.pipelined.scatters import Partial


class Lowering(Enum):
    """How a call is run."""

    PLAIN = "plain"
    MESSAGES = "messages"
    SHARED_MEMORY = "shared memory"
    SYMMETRIC_MEMORY = "symmetric memory"


def for_gather(gather: Gather, capabilities: Capabilities) -> Lowering:
    """How a gather and its products are run."""
    scaled = any(isinstance(factor, ScaledFactor) for factor in gather.factors)
    # A scaled product cannot be added up from parts of the sum without rounding each.
    if gather.ranks == 1 or gather.shard.numel() == 0 or (gather.summed and scaled):
        return Lowering.PLAIN
    return _for_tensor(gather.shard, capabilities)


def for_reduction(partial: Partial, ranks: int, capabilities: Capabilities) -> Lowering:
    """How a sum of products and its reduction are run."""
    if ranks == 1 or 0 in partial.shape:
        return Lowering.PLAIN
    return _for_tensor(partial.lefts[0], capabilities)


def _for_tensor(tensor: Tensor, capabilities: Capabilities) -> Lowering:
    if capabilities.shared_memory:
        return Lowering.SHARED_MEMORY
    return Lowering.MESSAGES if capabilities.messages and tensor.layout is torch.strided else Lowering.PLAIN
