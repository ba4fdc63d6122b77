"""Counterpoint, a communication compiler for PyTorch.

The names below load their modules when they are first used: importing the package itself costs next to nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from counterpoint.capture.compiled import capture_compiled
    from counterpoint.capture.fully_shard import fully_shard
    from counterpoint.capture.replicate import replicate
    from counterpoint.capture.step import capture_step
    from counterpoint.capture.world import fake_world
    from counterpoint.runtime.measure import calibrate_links

__all__ = [
    "MixedPrecisionPolicy",
    "calibrate_links",
    "capture_compiled",
    "capture_step",
    "fake_world",
    "fully_shard",
    "replicate",
]

_HOMES = {
    "MixedPrecisionPolicy": "torch.distributed.fsdp",
    "calibrate_links": "counterpoint.runtime.measure",
    "capture_compiled": "counterpoint.capture.compiled",
    "capture_step": "counterpoint.capture.step",
    "fake_world": "counterpoint.capture.world",
    "fully_shard": "counterpoint.capture.fully_shard",
    "replicate": "counterpoint.capture.replicate",
    "clear_reports": "counterpoint.report.history",
    "reports": "counterpoint.report.history",
}


if os.environ.get("COUNTERPOINT_LOGS"):
    from counterpoint import logs

    logs.configure(os.environ["COUNTERPOINT_LOGS"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
