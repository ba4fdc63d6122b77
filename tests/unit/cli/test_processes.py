"""The demo's processes talk to the one that started them, and none outlives it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from counterpoint.cli.demo.processes import processes
from counterpoint.errors import CounterpointError
from tests.support import demo_work

ROOT = Path(__file__).parents[3]


def gone(pid: int, within_s: float = 10.0) -> bool:
    limit = time.monotonic() + within_s
    while time.monotonic() < limit:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_messages_arrive_and_the_end_is_seen() -> None:
    with processes(demo_work.tell, 2, {"COUNTERPOINT_TEST_WORD": "hello"}) as messages:
        found = sorted(messages)
    assert [(m.rank, m.kind, m.data) for m in found] == [
        (0, "place", (0, 2, "hello")),
        (1, "place", (1, 2, "hello")),
    ]
    assert "COUNTERPOINT_TEST_WORD" not in os.environ


def test_one_that_fails_ends_all_and_says_why() -> None:
    with (
        pytest.raises(CounterpointError, match="ValueError: on purpose"),
        processes(demo_work.fail_on_one, 2, {}) as messages,
    ):
        list(messages)


def test_one_that_dies_ends_all() -> None:
    with (
        pytest.raises(CounterpointError, match="process 1 ended with exit code 7"),
        processes(demo_work.die_on_one, 2, {}) as messages,
    ):
        list(messages)


def test_leaving_the_block_ends_all_with_what_they_started() -> None:
    with processes(demo_work.linger, 2, {}) as messages:
        pids = [pid for _ in range(2) for pid in next(messages).data]
    assert all(gone(pid) for pid in pids)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(how: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.support.demo_work"]
    parent = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    pids = [int(word) for _ in range(2) for word in parent.stdout.readline().split()]
    assert len(pids) == 4
    # As a terminal does it: to the whole group.
    os.killpg(parent.pid, how)
    parent.stdout.close()
    parent.wait()
    assert all(gone(pid) for pid in pids)
