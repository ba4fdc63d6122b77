"""Shared memory under stress: many small collectives, ranks that dawdle, more ranks than cores, ranks that are killed.

COUNTERPOINT_STRESS=10 runs ten times as much.
"""

from __future__ import annotations

import os
import random
from multiprocessing import connection, get_context
from typing import Any

import pytest
import torch
import torch.distributed as dist

from counterpoint.errors import SharedMemoryError
from counterpoint.runtime.shared_memory import workspace_of
from counterpoint.runtime.shared_memory.faults import Member
from counterpoint.runtime.shared_memory.library import kernels
from counterpoint.runtime.shared_memory.segment import Segment
from counterpoint.runtime.shared_memory.workspace import Workspace

pytestmark = pytest.mark.cxx

TIMES = int(os.environ.get("COUNTERPOINT_STRESS", "1"))
TIMEOUT_S = 60.0
SLOT_BYTES = 16 * 1024
KILLED_AFTER_AT_MOST_S = 0.05


def job_back_to_back(calls: int) -> int:
    """Small all-reduces one after the other; how many came out wrong."""
    rank, world = dist.get_rank(), dist.get_world_size()
    workspace, wrong = workspace_of(), 0
    mine, total = torch.empty(7, dtype=torch.int64), torch.empty(7, dtype=torch.int64)
    base = world * (world - 1) // 2
    for number in range(calls):
        workspace.one_shot_all_reduce(mine.fill_(rank + number), out=total)
        wrong += total.tolist() != [base + world * number] * 7
    return wrong


def job_dawdling(calls: int) -> int:
    """Collectives of any size and kind, between which every rank computes for a time of its own."""
    rank, world = dist.get_rank(), dist.get_world_size()
    shared, own = random.Random(1), random.Random(rank)
    workspace, wrong = workspace_of(), 0
    for number in range(calls):
        torch.ones(own.choice([1, 1, 1, 100_000])).sum()
        rows = shared.choice([0, 1, 13, 1000, 50_000])
        wrong += not right(workspace, shared.choice(KINDS), rows, number, rank, world)
    return wrong


KINDS = ("one_shot_all_reduce", "two_shot_all_reduce", "all_gather", "reduce_scatter")


def right(workspace: Workspace, kind: str, rows: int, number: int, rank: int, world: int) -> bool:
    """Make a call; whether every value of the result is what it should be."""
    line = torch.arange(rows * world, dtype=torch.int64) + number
    all_of = [line * (peer + 1) for peer in range(world)]
    total = line * (world * (world + 1) // 2)
    expected = {"all_gather": torch.cat(all_of), "reduce_scatter": total[rank * rows : (rank + 1) * rows]}
    return torch.equal(getattr(workspace, kind)(all_of[rank]), expected.get(kind, total))


@pytest.mark.parametrize(("world", "calls"), [(2, 10_000), (4, 1_000), (8, 200)])
def test_small_ones_back_to_back(ranks, world: int, calls: int) -> None:
    assert ranks(world).run(job_back_to_back, calls * TIMES) == [0] * world


@pytest.mark.parametrize(("world", "calls"), [(2, 300), (4, 100)])
def test_ranks_that_dawdle(ranks, world: int, calls: int) -> None:
    assert ranks(world).run(job_dawdling, calls * TIMES) == [0] * world


# -- killed ranks: bare processes, since a process group would take longer to set up than everything that is tested ----


def member(pipe: Any, rank: int, pid: int, descriptor: int, world: int) -> None:
    """One rank: collectives until somebody is missing; answers with calls made, calls wrong, and the error."""
    torch.set_num_threads(1)
    library = kernels()
    segment = Segment.of_process(pid, descriptor, world, library.cp_segment_bytes(world, SLOT_BYTES))
    pids = pipe.recv()
    workspace = Workspace(
        library,
        segment,
        rank,
        [Member.of(number, pid) for number, pid in enumerate(pids)],
        group="stress",
        timeout_s=TIMEOUT_S,
        spin_us=20.0,
        slot_bytes=SLOT_BYTES,
    )
    pipe.send("ready")
    pipe.recv()
    made = wrong = 0
    shared, own = random.Random(0), random.Random(rank)
    try:
        while True:
            torch.ones(own.choice([1, 1, 10_000])).sum()
            wrong += not right(workspace, shared.choice(KINDS), shared.choice([1, 50, 3000, 40_000]), made, rank, world)
            made += 1
    except SharedMemoryError as error:
        pipe.send((made, wrong, error))


def killed_round(world: int, chance: random.Random) -> list[tuple[int, int, Exception]]:
    """Start ranks, kill one at some time, and what the others answer."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    segment = Segment.create(world, kernels().cp_segment_bytes(world, SLOT_BYTES))
    pipes, processes = [], []
    for rank in range(world):
        here, there = context.Pipe()
        pipes.append(here)
        arguments = (there, rank, os.getpid(), segment.descriptor, world)
        processes.append(context.Process(target=member, args=arguments, daemon=True))
        processes[-1].start()
        there.close()
    try:
        for pipe in pipes:
            pipe.send([process.pid for process in processes])
        assert [pipe.recv() for pipe in pipes] == ["ready"] * world
        # Everything is open by now, and the memory lives on the ranks alone.
        segment.close()
        for pipe in pipes:
            pipe.send("go")
        victim = chance.randrange(world)
        assert connection.wait(pipes, chance.uniform(0, KILLED_AFTER_AT_MOST_S)) == []
        processes[victim].kill()
        survivors = [pipe for rank, pipe in enumerate(pipes) if rank != victim]
        assert all(pipe.poll(TIMEOUT_S / 2) for pipe in survivors), "a rank hangs"
        return [pipe.recv() for pipe in survivors]
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_ranks_killed_at_any_point() -> None:
    """Nobody hangs, nobody computes nonsense, everybody is told who is missing, and nothing is left behind."""
    chance, before = random.Random(7), set(os.listdir("/dev/shm"))
    for number in range(50 * TIMES):
        world = (2, 3, 4)[number % 3]
        answers = killed_round(world, chance)
        assert len(answers) == world - 1
        assert [wrong for _, wrong, _ in answers] == [0] * (world - 1)
        assert all("has ended" in str(error) for _, _, error in answers), answers
    assert set(os.listdir("/dev/shm")) <= before
