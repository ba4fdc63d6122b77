"""Which torch is installed, and which is the oldest that works."""

from __future__ import annotations

import torch

from counterpoint.errors import UnsupportedTorchError

OLDEST_TORCH = (2, 11)


def torch_version() -> tuple[int, int]:
    """Major and minor version of the installed torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def require_supported_torch() -> None:
    """Raise unless the installed torch is new enough. Entries call this first, before anything private is reached."""
    if torch_version() < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise UnsupportedTorchError(
            f"torch {torch.__version__} is older than {oldest}, the oldest supported version",
            next_step=f"install torch {oldest} or newer",
        )
