"""Ranks of a group as short text: `0..7`, `0..1016 step 8`, `0, 1, 4`."""

from __future__ import annotations

import re
from collections.abc import Sequence

_RUN = re.compile(r"(\d+)\.\.(\d+)(?: step (\d+))?")
_MOST = 1 << 22


def ranks_text(ranks: Sequence[int]) -> str:
    """A run with one step where the ranks are one, else all of them."""
    if len(ranks) > 2:
        step = ranks[1] - ranks[0]
        if step > 0 and list(ranks) == list(range(ranks[0], ranks[-1] + 1, step)):
            return f"{ranks[0]}..{ranks[-1]}" + (f" step {step}" if step != 1 else "")
    return ", ".join(map(str, ranks))


def ranks_of(text: str) -> tuple[int, ...] | None:
    """The ranks of a text, or None where it does not read as ranks."""
    run = _RUN.fullmatch(text.strip())
    if run is not None:
        first, last, step = int(run[1]), int(run[2]), int(run[3] or 1)
        if step == 0 or last < first or last - first > _MOST:
            return None
        return tuple(range(first, last + 1, step))
    parts = [part.strip() for part in text.split(",")]
    return tuple(map(int, parts)) if all(part.isdigit() and len(part) < 10 for part in parts) else None
