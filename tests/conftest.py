"""Fixtures for every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

# Before torch is imported: the ranks of one test share the machine, and a compile pool would outlive its test.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# gloo looks up the host name unless it is told an interface; the loopback one is always there.
if os.path.exists("/sys/class/net/lo"):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

# Shells start what runs in the background with interrupts ignored, and processes pass that on to those they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from typing import TYPE_CHECKING

import pytest

from tests.support import toolchain

if TYPE_CHECKING:
    from tests.support.gloo import RanksByWorldSize


@pytest.fixture(scope="module")
def ranks() -> Iterator[RanksByWorldSize]:
    """`ranks(2)`, `ranks(4)`: real gloo processes, started once in a test module. See `tests.support.gloo`."""
    from tests.support.gloo import RanksByWorldSize  # imports torch, which the project tests do without

    pools = RanksByWorldSize()
    yield pools
    pools.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, and say why, what this machine cannot run."""
    for marker, missing in toolchain.NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = missing() if marked else None
        for item in marked if reason else []:
            item.add_marker(pytest.mark.skip(reason=str(reason)))
