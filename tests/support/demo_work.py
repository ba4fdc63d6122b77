"""Work for the tests of the demo's processes; imports nothing heavy, since every process imports it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from counterpoint.cli.demo.processes import Say, processes


def tell(rank: int, world_size: int, say: Say) -> None:
    say("place", (rank, world_size, os.environ["COUNTERPOINT_TEST_WORD"]))


def fail_on_one(rank: int, world_size: int, say: Say) -> None:
    if rank == 1:
        raise ValueError("on purpose")
    time.sleep(600)


def die_on_one(rank: int, world_size: int, say: Say) -> None:
    if rank == 1:
        os._exit(7)
    time.sleep(600)


def linger(rank: int, world_size: int, say: Say) -> None:
    """Start a process of its own, as a compile does, and stay."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    say("pids", (os.getpid(), child.pid))
    time.sleep(600)


def main() -> None:
    """Start lingering processes, print their ids, and stay."""
    with processes(linger, 2, {}) as messages:
        for _ in range(2):
            print(*next(messages).data, flush=True)
        for _ in messages:
            pass


if __name__ == "__main__":
    main()
