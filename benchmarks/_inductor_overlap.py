"""Inductor's overlap scheduler, also where there is no Triton that it could ask what the device sustains."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest import mock

from torch.fx import GraphModule

ASKED = ("torch.utils._runtime_estimation", "torch._inductor.utils", "torch._inductor.scheduler")


@contextmanager
def constants(dram_gbps: float = 2000.0, tflops: float = 300.0) -> Iterator[None]:
    """Without Triton, these in place of what it would tell; else nothing."""
    if find_spec("triton") is not None:
        yield
        return
    with ExitStack() as undo:
        for module in ASKED:
            for name, value in (("get_gpu_dram_gbps", dram_gbps), ("get_device_tflops", tflops)):
                if hasattr(import_module(module), name):
                    undo.enter_context(mock.patch(f"{module}.{name}", lambda *_, value=value: value))
        yield


def overlap_by_inductor(gm: GraphModule, node_ms: Callable[..., float | None]) -> None:
    """Schedule and bucket the graph in place; `node_ms` tells what nodes take."""
    from torch._inductor.fx_passes.overlap_scheduling import schedule_overlap_bucketing

    wanted: dict[str, Any] = {
        "collective_bucketing": True,
        "compute_estimator": "analytical",
        "custom_runtime_estimation": node_ms,
    }
    known = inspect.signature(schedule_overlap_bucketing).parameters
    with constants():
        schedule_overlap_bucketing(gm, **{name: value for name, value in wanted.items() if name in known})
