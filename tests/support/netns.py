"""Two network namespaces joined by a link of a given bandwidth: processes on one machine that talk as over a network.

    with shaped_link(1.0) as ends:
        subprocess.Popen([*ends[0].command, ...], env={**os.environ, **ends[0].environment})

Needs root, `ip` and `tc` (iproute2). `missing()` says what is not there. The namespaces are deleted when the block is
left, and with them the link; a process that still runs inside keeps its end alive until it ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

BURST = "256kb"
"""What may leave at once; a token bucket needs some, and this is a few percent of a large transfer."""
LONGEST_QUEUE = "50ms"


@dataclass(frozen=True)
class End:
    """One end of the link: where a process runs that talks through it."""

    namespace: str
    interface: str
    address: str

    @property
    def command(self) -> list[str]:
        """What to put before the command of a process."""
        return ["ip", "netns", "exec", self.namespace]

    @property
    def environment(self) -> dict[str, str]:
        """What gloo must know."""
        return {"GLOO_SOCKET_IFNAME": self.interface}


def missing() -> str | None:
    """Why namespaces cannot be made here; None when they can."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"no {tool} (iproute2) on this machine"
    probe = f"cp{os.getpid()}probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made: {made.stderr.strip()}"
    _run("ip", "netns", "delete", probe)
    return None


@contextlib.contextmanager
def shaped_link(gbps: float | None) -> Iterator[tuple[End, End]]:
    """Both ends of a link that lets so much through in each direction; None leaves it unshaped."""
    ends = tuple(End(f"cp{os.getpid()}n{k}", f"cp{os.getpid() % 100000}v{k}", f"10.77.7.{k + 1}") for k in range(2))
    one, other = ends
    try:
        for end in ends:
            _run("ip", "netns", "add", end.namespace)
        _run("ip", "link", "add", one.interface, "netns", one.namespace, "type", "veth", "peer", "name",
             other.interface, "netns", other.namespace)  # fmt: skip
        for end in ends:
            _bring_up(end, gbps)
        yield one, other
    finally:
        for end in ends:
            _run("ip", "netns", "delete", end.namespace, check=False)


def _bring_up(end: End, gbps: float | None) -> None:
    inside = ["ip", "-n", end.namespace]
    _run(*inside, "address", "add", f"{end.address}/24", "dev", end.interface)
    for interface in ("lo", end.interface):
        _run(*inside, "link", "set", interface, "up")
    if gbps is not None:
        shape = ["rate", f"{gbps * 1000:g}mbit", "burst", BURST, "latency", LONGEST_QUEUE]
        _run(*end.command, "tc", "qdisc", "add", "dev", end.interface, "root", "tbf", *shape)


def _run(*command: str, check: bool = True) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
