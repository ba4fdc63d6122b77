"""Commands that also run under torchrun: one process a rank, the first of which speaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta


def under_torchrun() -> bool:
    """Whether torchrun, or something like it, started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_first() -> bool:
    """Whether this process speaks for all."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def joined(backend: str | None, within_s: float | None = None) -> Iterator[bool]:
    """The process group of torchrun; yields whether this process is alone."""
    import torch
    import torch.distributed as dist

    if not under_torchrun():
        yield True
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    timeout = timedelta(seconds=within_s) if within_s is not None else None
    dist.init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"), timeout=timeout)
    try:
        yield dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()
