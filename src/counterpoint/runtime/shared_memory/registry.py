"""One workspace a group, made when it is first needed, let go of with the group."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass

import torch.distributed as dist

from counterpoint._torch import process_group
from counterpoint.cost.capabilities import Capability, absent
from counterpoint.errors import GroupError, SharedMemoryError
from counterpoint.runtime.locks import Locks
from counterpoint.runtime.pretend import pretends
from counterpoint.runtime.shared_memory.agree import rendezvous
from counterpoint.runtime.shared_memory.workspace import Workspace


@dataclass(frozen=True)
class _Entry:
    group: weakref.ref[dist.ProcessGroup]
    workspace: Workspace


class Workspaces:
    """The workspaces of this process, by group."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._by_group = Locks()

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
        with self._by_group.of(name):
            with self._lock:
                entry = self._entries.get(name)
            if entry is not None and entry.group() is group:
                return entry.workspace
            workspace = rendezvous(group)
            with self._lock:
                self._entries[name] = _Entry(weakref.ref(group), workspace)
            # The group's own end is the end of its memory; the interpreter's end needs no help of ours.
            weakref.finalize(group, self._forget, name, workspace).atexit = False
            return workspace

    def _forget(self, name: str, workspace: Workspace) -> None:
        workspace.close()
        with self._lock:
            entry = self._entries.get(name)
            # Another group may have taken the name since.
            if entry is not None and entry.workspace is workspace:
                del self._entries[name]

    def probe(self, group: dist.ProcessGroup | None = None) -> Capability:
        """Whether the ranks of the group can work in shared memory: tried, and said as data. A collective call."""
        if pretends(group):
            return absent("the group only pretends to communicate")
        try:
            workspace = self.of(group)
        except SharedMemoryError as error:
            return absent(error.what)
        return Capability(True, f"{workspace.size} ranks of one host share memory")


WORKSPACES = Workspaces()
"""Those that the operators use."""
