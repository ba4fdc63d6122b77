"""One workspace a group, made when it is first needed, let go of with the group."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass

import torch.distributed as dist

from counterpoint._torch import process_group
from counterpoint.errors import GroupError, SharedMemoryError
from counterpoint.runtime.shared_memory.rendezvous import rendezvous
from counterpoint.runtime.shared_memory.workspace import Workspace


@dataclass(frozen=True)
class Probe:
    """Whether the ranks of a group can work in shared memory; the same on all of them."""

    available: bool
    reason: str
    """Why not, or what was found, in words."""


@dataclass(frozen=True)
class _Entry:
    group: weakref.ref[dist.ProcessGroup]
    workspace: Workspace


class Workspaces:
    """The workspaces of this process, by group."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.RLock()

    def of(self, group: dist.ProcessGroup | None = None) -> Workspace:
        """The workspace of a group. The first call for a group is a collective one."""
        group = group if group is not None else dist.group.WORLD
        if group is None:
            raise GroupError("there is no process group", next_step="call torch.distributed.init_process_group first")
        return self._found(group.group_name, group)

    def of_name(self, name: str) -> Workspace:
        """The workspace of a group as a graph names it."""
        entry = self._entries.get(name)
        if entry is not None and entry.group() is not None:
            return entry.workspace
        return self._found(name, process_group(name))

    def _found(self, name: str, group: dist.ProcessGroup) -> Workspace:
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None and entry.group() is group:
                return entry.workspace
            workspace = rendezvous(group)
            # The group's own end is the end of its memory; the interpreter's end needs no help of ours.
            weakref.finalize(group, workspace.close).atexit = False
            self._entries[name] = _Entry(weakref.ref(group), workspace)
            return workspace

    def probe(self, group: dist.ProcessGroup | None = None) -> Probe:
        """Try it: what `of` would say, as data. A collective call of the group."""
        if dist.get_backend(group) == "fake":
            return Probe(False, "the group only pretends to communicate")
        try:
            workspace = self.of(group)
        except SharedMemoryError as error:
            return Probe(False, error.what)
        return Probe(True, f"{workspace.size} ranks of one host share memory")


WORKSPACES = Workspaces()
"""Those that the operators use."""
