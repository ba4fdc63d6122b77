"""Letting Python's cyclic collector rest while a large graph is rewritten."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Nearly all that a rewrite makes lives as long as the graph, so the collector's runs over a large graph find
    nothing, and together they would take more time than the rewrite. Also a decorator."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
