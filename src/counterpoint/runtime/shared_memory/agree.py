"""How the ranks of a group come to share memory: rank 0 makes it, the others open it, and all agree on what came out.

A collective call. Whatever fails on one rank fails on all of them, with the same words, so no rank goes on alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from counterpoint._torch import group_timeout_s
from counterpoint.cost.shared_memory import host_memory
from counterpoint.errors import SharedMemoryError
from counterpoint.runtime.shared_memory.faults import Member
from counterpoint.runtime.shared_memory.library import kernels, library_path
from counterpoint.runtime.shared_memory.segment import Segment
from counterpoint.runtime.shared_memory.workspace import SLOT_BYTES, Workspace

SPIN_US = 100.0
"""How long to look for a peer before sleeping, where every rank has a processor of its own."""
SPIN_CROWDED_US = 2.0
"""The same where ranks share processors: who spins there keeps the peer from running."""

T = TypeVar("T")


@dataclass(frozen=True)
class Facts:
    """What one rank tells the others."""

    host: str
    pid: int
    processors: frozenset[int]
    kernels: tuple[str, int]
    """Which library, and the size of the slots it is to use."""
    problem: str | None = None
    memory: tuple[int, tuple[int, int]] | None = None
    """Of rank 0: the number of its descriptor, and what identifies the file behind it."""


def rendezvous(group: dist.ProcessGroup | None = None, *, slot_bytes: int = SLOT_BYTES) -> Workspace:
    """The shared memory of a group, newly made. All ranks of the group call it together.

    SharedMemoryError, on all ranks alike, where they are not all on one host, or one of them lacks a compiler, Linux,
    or the right to open the memory of another. `workspace_of` keeps what is made here for the next call.
    """
    ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    rank = dist.get_rank(group)
    library, problem = _attempt(kernels)
    size = library.cp_segment_bytes(len(ranks), slot_bytes) if library is not None else 0
    made, trouble = _attempt(lambda: Segment.create(len(ranks), size)) if rank == 0 and size else (None, None)
    using = (library_path().name if library is not None else "none", slot_bytes)
    everyone = _exchanged(_facts(made, using, problem or trouble), group, len(ranks))
    agreed = _disagreement(everyone, ranks)
    segment = made
    if agreed is None and segment is None:
        segment, problem = _attempt(lambda: _opened(everyone[0], len(ranks), size))
    agreed = agreed or _first_problem(_exchanged(problem, group, len(ranks)), ranks)
    if agreed is not None or segment is None or library is None:
        if segment is not None:
            segment.close()
        raise SharedMemoryError(
            agreed or "there is no memory",
            where=f"group of ranks {ranks}",
            next_step="its collectives go through the process group instead",
        )
    processors = len(frozenset[int]().union(*(facts.processors for facts in everyone)))
    return Workspace(
        library,
        segment,
        rank,
        [Member.of(number, facts.pid) for number, facts in zip(ranks, everyone, strict=True)],
        group=group.group_name if group is not None else "world",
        timeout_s=group_timeout_s(group),
        spin_us=SPIN_US if processors >= len(ranks) else SPIN_CROWDED_US,
        host=host_memory(len(ranks), processors),
        processors=processors,
        slot_bytes=slot_bytes,
    )


def _attempt(make: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return make(), None
    except SharedMemoryError as error:
        return None, error.what


def _facts(made: Segment | None, using: tuple[str, int], problem: str | None) -> Facts:
    memory = None
    if made is not None:
        status = os.fstat(made.descriptor)
        memory = (made.descriptor, (status.st_dev, status.st_ino))
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return Facts(host_identity(), os.getpid(), frozenset(processors), using, problem, memory)


def host_identity() -> str:
    """The same text for processes that run on one kernel and see each other's process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        # Not a system where memory can be shared this way; said elsewhere, in words.
        return f"unknown {os.getpid()}"


def _disagreement(everyone: Sequence[Facts], ranks: Sequence[int]) -> str | None:
    """Why these ranks cannot share memory, from what all of them know."""
    hosts: dict[str, list[int]] = {}
    for rank, facts in zip(ranks, everyone, strict=True):
        hosts.setdefault(facts.host, []).append(rank)
    if len(hosts) > 1:
        parts = " and ".join(map(str, hosts.values()))
        return f"ranks {parts} are on different hosts, or in containers that do not see each other's processes"
    problem = _first_problem([facts.problem for facts in everyone], ranks)
    if problem is None and len({facts.kernels for facts in everyone}) > 1:
        return f"ranks {list(ranks)} use different kernels, or slots of different sizes"
    return problem


def _first_problem(problems: Sequence[str | None], ranks: Sequence[int]) -> str | None:
    return next((f"rank {rank}: {said}" for rank, said in zip(ranks, problems, strict=True) if said), None)


def _opened(first: Facts, world: int, size: int) -> Segment:
    """The memory that rank 0 made, if that is what is found."""
    if first.memory is None:
        raise SharedMemoryError("rank 0 has made no memory")
    descriptor, identity = first.memory
    segment = Segment.of_process(first.pid, descriptor, world, size)
    status = os.fstat(segment.descriptor)
    if (status.st_dev, status.st_ino) != identity:
        segment.close()
        raise SharedMemoryError(f"descriptor {descriptor} of process {first.pid} is another file than rank 0 made")
    return segment


def _exchanged(value: Any, group: dist.ProcessGroup | None, world: int) -> list[Any]:
    """The value of every rank, in rank order."""
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, value, group=group)
    return gathered
