"""Having our lowerings in force while we compile, and leaving inductor's table as it was found.

The table is one for the whole process, and other threads may compile with plain inductor at the same time. So what is
put there looks at the graph that is being lowered: one that is ours gets our lowering, any other what it would have
got. The first of our compiles puts it there, the last to end takes it away.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._inductor import lowering
from torch._inductor.virtualized import V

from counterpoint._torch import OpOverload
from counterpoint.inductor.lowering.state import is_ours
from counterpoint.inductor.lowering.table import Registered, comm_lowerings, symm_mem_lowerings

_ABSENT: Any = object()


class LoweringScope:
    """The lowerings, in force while any `with scope.active():` block is open."""

    def __init__(self, table: dict[Any, Any]) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._open = 0
        self._put: dict[OpOverload, tuple[Registered, Any]] = {}
        """For each operator what we have put there and what was there before."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Our lowerings for our graphs."""
        with self._lock:
            self._open += 1
            if self._open == 1:
                self._install()
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                if self._open == 0:
                    self._restore()

    def _install(self) -> None:
        for operator, ours in (comm_lowerings() | symm_mem_lowerings()).items():
            theirs = self._table.get(operator, _ABSENT)
            chosen = _by_graph(operator, ours, theirs)
            self._put[operator] = (chosen, theirs)
            self._table[operator] = chosen

    def _restore(self) -> None:
        for operator, (chosen, theirs) in self._put.items():
            if self._table.get(operator) is not chosen:
                continue  # Somebody has registered another one since: theirs to keep.
            if theirs is _ABSENT:
                del self._table[operator]
            else:
                self._table[operator] = theirs
        self._put.clear()


def _by_graph(operator: OpOverload, ours: Registered, theirs: Any) -> Registered:
    # An operator without a lowering is called as it is: what inductor makes of any operator that it does not know.
    other = lowering.fallback_handler(operator, add_to_fallback_set=False) if theirs is _ABSENT else theirs

    def lowered(*args: Any, **kwargs: Any) -> Any:
        return (ours if is_ours(V.graph) else other)(*args, **kwargs)

    return lowered


SCOPE = LoweringScope(lowering.lowerings)
"""The one of inductor's table."""
