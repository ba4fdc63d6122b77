"""Whether all ranks of a group are at the same place of their program, so that they may communicate there.

Asked over the store: a rank says that it has come and looks whether all others do within some time. The first to know
writes the one answer that counts for all, so that a rank whose patience ends just when the last one comes does what the
others do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterpoint.runtime.store import arrived

ALL, NOT_ALL = "all", "not all"


def assemble(store: Any, topic: str, ranks: Sequence[int], rank: int, within_s: float) -> bool:
    """Say that this rank has come; whether all have. The same answer on every rank that asks."""
    key = f"counterpoint/assembly/{topic}"
    store.set(f"{key}/{rank}", "here")
    wanted = [f"{key}/{other}" for other in ranks]
    come = arrived(store, wanted, within_s)
    answer = store.compare_set(f"{key}/answer", "", ALL if come else NOT_ALL)
    return bytes(answer).decode() == ALL
