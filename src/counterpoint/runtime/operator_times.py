"""Measuring what the operators of a graph take on this device, on tensors made up to fit.

Only operators that no code generator fuses away are worth a measurement of their own: products, convolutions and
attention. The others follow from their traffic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.fx import Node

from counterpoint._torch import size_hint
from counterpoint.cost.compute import flop_of, takes_no_time
from counterpoint.cost.measured import operator_key
from counterpoint.ir import effects, metadata
from counterpoint.ir.effects import Effect
from counterpoint.runtime.measure import synchronize

REPEATS = 5
IN_A_ROW = 10
"""Calls timed together on a GPU: launching one and waiting for it takes up to 90 us of the host's time (our
measurement, H200), which a step that launches ahead does not see."""


class OperatorTimes(NamedTuple):
    """What was measured, and what could not be."""

    us: dict[str, float]
    """Microseconds by `operator_key`."""
    skipped: dict[str, str]
    """Why an operator was not measured, by key."""


def measure_operators(
    nodes: Iterable[Node],
    device: torch.device | None = None,
    *,
    repeats: int = REPEATS,
    said: Callable[[str], object] = lambda _: None,
) -> OperatorTimes:
    """Time every distinct heavy operator among the nodes. `device`: where, by default where the graph was captured."""
    found, skipped = {}, {}
    for node in nodes:
        key = operator_key(node) if _is_heavy(node) else None
        if key is None or key in found or key in skipped:
            continue
        said(key)
        try:
            found[key] = _shortest_us(node, device, repeats)
        except Exception as error:
            # Made-up values do not suit every operator, and one that cannot be measured is estimated.
            skipped[key] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return OperatorTimes(found, skipped)


def agreed(times: Mapping[str, float]) -> dict[str, float]:
    """The longest time that any rank of the world has measured for each operator, the same on all ranks."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return dict(times)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, dict(times))
    keys = sorted(set().union(*gathered))
    return {key: max(one[key] for one in gathered if key in one) for key in keys}


def _is_heavy(node: Node) -> bool:
    if takes_no_time(node) or not metadata.has_value(node) or effects.effect_of(node) is not Effect.PURE:
        return False
    return flop_of(node) is not None


def _shortest_us(node: Node, device: torch.device | None, repeats: int) -> float:
    call: Any = node.target
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda source: made_up(source.meta["val"], device))
    made = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    where = made[0].device if made else torch.device("cpu")
    times, calls = [], 1 if where.type == "cpu" else IN_A_ROW
    for _ in range(repeats + 1):
        synchronize(where)
        began = time.perf_counter()
        for _ in range(calls):
            call(*args, **kwargs)
        synchronize(where)
        times.append((time.perf_counter() - began) * 1e6 / calls)
    # The first call also allocates and chooses kernels.
    return min(times[1:])


def made_up(value: Any, device: torch.device | None) -> Any:
    """A value like the fake one, with sizes by their hints."""
    if isinstance(value, (list, tuple)):
        return [made_up(one, device) for one in value]
    if isinstance(value, torch.SymInt):
        return _size(value)
    if not isinstance(value, Tensor):
        return value
    sizes, strides = [_size(size) for size in value.shape], [_size(stride) for stride in value.stride()]
    empty = torch.empty_strided(sizes, strides, dtype=value.dtype, device=device or value.device)
    return empty.normal_() if value.dtype.is_floating_point and value.dtype.itemsize > 1 else empty.zero_()


def _size(size: int | torch.SymInt) -> int:
    """The size by its hint; ValueError where it has none."""
    found = size_hint(size)
    if found is None:
        raise ValueError(f"the size {size} is only known at run time")
    return found
