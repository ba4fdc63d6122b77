"""The only door, beside `inductor/`, to torch names that are not public. Each entry says which versions need what."""

from __future__ import annotations

import torch

OLDEST_TORCH = (2, 11)


def torch_version() -> tuple[int, int]:
    """Major and minor version of the installed torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)
