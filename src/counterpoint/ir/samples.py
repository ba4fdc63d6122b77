"""Inputs on which a graph can be tried: small integers, so that sums are exact in every dtype and in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from counterpoint._torch import size_hint
from counterpoint.errors import EvaluationError
from counterpoint.ir import metadata


def sample_inputs(gm: GraphModule, world_size: int, seed: int = 0) -> list[list[Any]]:
    """Inputs for every rank, made after the placeholders' fake values; symbolic sizes take their hints."""
    holders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return [[_sample(metadata.value_of(n), seed, rank, i) for i, n in enumerate(holders)] for rank in range(world_size)]


def _sample(value: Any, seed: int, rank: int, position: int) -> Any:
    if not isinstance(value, Tensor):
        # Symbolic sizes have to agree on all ranks, as real shapes do.
        return _hint(value) if isinstance(value, torch.SymInt) else value
    generator = torch.Generator().manual_seed(1_000_003 * seed + 1009 * rank + position)
    shape, stride = _hints(value.shape), _hints(value.stride())
    highest = 2 if value.dtype is torch.bool else 5
    drawn = torch.randint(0, highest, shape, generator=generator).to(value.dtype)
    made = torch.empty_strided(shape, stride, dtype=value.dtype)
    # An expanded tensor has one element behind many: write the storage once, not every place that looks at it.
    made.copy_(drawn) if 0 not in stride else made.as_strided((_span(shape, stride),), (1,)).fill_(rank + 1)
    return made


def _hints(sizes: Sequence[int | torch.SymInt]) -> tuple[int, ...]:
    return tuple(map(_hint, sizes))


def _hint(size: int | torch.SymInt) -> int:
    """The hint of a size. Asking the size itself would make it constant for good."""
    hint = size_hint(size)
    if hint is None:
        raise EvaluationError(f"the size {size} is not known, so no input of it can be made up")
    return hint


def _span(shape: Sequence[int], stride: Sequence[int]) -> int:
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
