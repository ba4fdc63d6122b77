"""A lock a group: what is found out about one, with the other ranks, must not wait for another one's ranks.

With one lock for all groups, a thread of one rank could hold it for a group whose other rank waits, in a thread of its
own, for the lock that is held there for another group.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any


class Locks:
    """Locks by key, made when first asked for."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    def of(self, key: Hashable) -> Any:
        """The lock of a key."""
        with self._lock:
            return self._made.setdefault(key, threading.RLock())
