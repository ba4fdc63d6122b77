"""Settings of inductor that would undo or repeat our work, and are therefore set for our own compiles.

One table, a reason for each row. A row with a capability applies only when the pipeline provides it: until a pass of
ours does the work, torch's own pass stays as it is. A value that the user gives in `options=` always wins.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from torch._inductor import config as inductor_config


@dataclass(frozen=True)
class Fence:
    """One setting of inductor, the value it has in our compiles, and why."""

    key: str
    value: Any
    capability: str | tuple[str, ...] | None
    """What a pass of our pipeline must provide for the fence to stand, or one of several; None: it always stands."""
    reason: str
    watched: bool = True
    """Whether a record names it when it is on."""
    for_flights: bool = False
    """Whether it only protects what runs between a start and its wait."""

    def stands(self, provided: Collection[str]) -> bool:
        """Whether it stands in a pipeline that provides these."""
        wanted = (self.capability,) if isinstance(self.capability, str) else self.capability
        return wanted is None or any(one in provided for one in wanted)


FENCES: tuple[Fence, ...] = (
    Fence(
        "_fuse_ddp_communication",
        False,
        "fused-gradients",
        "DDP with the python reducer switches it on for the whole process; it merges without comparing group, "
        "reduction or dtype, and would leave our fusion nothing to fuse",
    ),
    Fence(
        "_micro_pipeline_tp",
        False,
        "micro-pipelined",
        "it runs before our passes and would take their matches",
    ),
    Fence(
        "aten_distributed_optimizations.enable_simple_overlap",
        False,
        None,
        "on by default from 2.14; it moves collectives after our passes have placed and accounted for them, and keeps "
        "the order only among collectives that it knows, so ranks can deadlock (pytorch issue 189454)",
    ),
    Fence(
        "aten_distributed_optimizations.enable_overlap_scheduling",
        False,
        "overlap-schedule",
        "it would schedule again what our scheduler has placed",
    ),
    Fence(
        "reorder_for_compute_comm_overlap",
        False,
        "overlap-schedule",
        "it would schedule again what our scheduler has placed",
    ),
    Fence(
        "reorder_for_peak_memory",
        False,
        ("delayed-waits", "overlap-schedule"),
        "it sorts generated calls anew: the wait of a reduce-scatter comes directly behind its start, because that "
        "frees what is sent, and a gather starts only where it is needed, so nothing is hidden behind anything",
        watched=False,
        for_flights=True,
    ),
    Fence(
        "bucket_all_gathers_fx",
        "none",
        "bucketed-all-gather",
        "it runs after our passes, and bakes the rank into code whose cache key has no rank (pytorch issue 188332)",
    ),
    Fence("bucket_reduce_scatters_fx", "none", "bucketed-reduce-scatter", "it runs after our passes"),
    Fence("bucket_all_reduces_fx", "none", "bucketed-all-reduce", "it runs after our passes"),
)

WATCHED = tuple(fence.key for fence in FENCES if fence.watched)
"""Settings that change collectives behind our back; a record names those that are on."""


def has_setting(key: str) -> bool:
    """Whether the installed torch has the inductor setting `a.b`; they differ from version to version."""
    return _read(key) is not _ABSENT


def fence_patches(provided: Collection[str], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The settings to patch for a pipeline that provides these capabilities; `chosen` are the user's own."""
    return {
        fence.key: fence.value
        for fence in FENCES
        if fence.stands(provided) and fence.key not in chosen and has_setting(fence.key)
    }


def for_flights(before: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Of these settings, as they were before: the fences for what runs between a start and its wait, and without."""
    return {f.key: (f.value, before[f.key]) for f in FENCES if f.for_flights and f.key in before}


def torch_passes_on(patches: Mapping[str, Any]) -> tuple[str, ...]:
    """Passes of torch that touch collectives and run in our compiles, given the patches."""
    values = {key: patches.get(key, _read(key)) for key in WATCHED if has_setting(key)}
    return tuple(sorted(key for key, value in values.items() if value not in (False, None, "none")))


def values_now(keys: Collection[str]) -> dict[str, Any]:
    """What these settings are at this moment."""
    return {key: _read(key) for key in keys}


_ABSENT = object()


def _read(key: str) -> Any:
    try:
        return reduce(getattr, key.split("."), inductor_config)
    except AttributeError:
        return _ABSENT
