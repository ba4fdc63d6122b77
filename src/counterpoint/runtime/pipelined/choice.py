"""Which lowering runs a call: a pure function of the call and of what the group can do, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from counterpoint.cost.capabilities import Capabilities
from counterpoint.runtime.pipelined import torch_fused
from counterpoint.runtime.pipelined.gathers import Gather, ScaledFactor
from counterpoint.runtime.pipelined.scatters import Partial
from counterpoint.runtime.shared_memory import supports


class Lowering(Enum):
    """How a call is run."""

    PLAIN = "plain"
    MESSAGES = "messages"
    SHARED_MEMORY = "shared memory"
    SYMMETRIC_MEMORY = "symmetric memory"
    TORCH_FUSED = "torch's fused operator"


def for_gather(gather: Gather, capabilities: Capabilities) -> Lowering:
    """How a gather and its products are run."""
    scaled = any(isinstance(factor, ScaledFactor) for factor in gather.factors)
    # A scaled product cannot be added up from parts of the sum without rounding each.
    if gather.ranks == 1 or gather.shard.numel() == 0 or (gather.summed and scaled):
        return Lowering.PLAIN
    if capabilities.symmetric_memory:
        # Of parts of rows ours is as fast as torch's with two ranks and faster with four (one H200, torch 2.11; see
        # docs/measures). Other calls have not been compared.
        compared = not scaled and not gather.summed
        fused = not compared and torch_fused.gather_obstacle(gather) is None
        return Lowering.TORCH_FUSED if fused else Lowering.SYMMETRIC_MEMORY
    return _on_host(capabilities)


def for_scatter(partial: Partial, dim: int, ranks: int, capabilities: Capabilities) -> Lowering:
    """How a sum of products and its reduce-scatter are run."""
    if ranks == 1 or 0 in partial.shape:
        return Lowering.PLAIN
    if capabilities.symmetric_memory:
        obstacle = torch_fused.scatter_obstacle(partial, dim)
        return Lowering.TORCH_FUSED if obstacle is None else Lowering.SYMMETRIC_MEMORY
    return _on_host(capabilities)


def for_all_reduce(partial: Partial, reduce_op: str, ranks: int, capabilities: Capabilities) -> Lowering:
    """How a sum of products and its all-reduce are run."""
    if ranks == 1 or 0 in partial.shape:
        return Lowering.PLAIN
    if capabilities.shared_memory and not supports(partial.dtype, reduce_op):
        return Lowering.MESSAGES if capabilities.messages else Lowering.PLAIN
    return _on_host(capabilities)


def for_exchange(shape: Sequence[int], ranks: int, capabilities: Capabilities) -> Lowering:
    """How an exchange of parts and its products are run, before the exchange or behind it."""
    return Lowering.PLAIN if ranks == 1 or 0 in shape else _on_host(capabilities)


def _on_host(capabilities: Capabilities) -> Lowering:
    if capabilities.shared_memory:
        return Lowering.SHARED_MEMORY
    return Lowering.MESSAGES if capabilities.messages else Lowering.PLAIN
