"""Talking over a store of torch.distributed: every wait has an end, and whoever is missing can be named."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

SHOWN = 16
"""Ranks that a message names; a thousand help nobody."""


def arrived(store: Any, keys: list[str], seconds: float) -> bool:
    """Wait for these keys; whether all are there. A store whose holder has ended raises RuntimeError."""
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except RuntimeError:
        # Kinds of stores tell of a timeout in different ways; what is there counts.
        return bool(store.check(keys))
    return True


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 1, 2`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {short(ranks)}"


def short(ranks: Sequence[Any]) -> str:
    """The first ranks, and how many more there are."""
    shown = ", ".join(map(str, ranks[:SHOWN]))
    return f"{shown} and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else shown
