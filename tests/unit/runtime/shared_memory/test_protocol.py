"""Ranks as threads: any sequence of collectives and loans comes out right, and what goes wrong is told to all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.errors import SharedMemoryError
from counterpoint.runtime.shared_memory import Workspace
from tests.support.team import Team

pytestmark = pytest.mark.cxx

JUST_BEFORE_THE_WRAP = 2**32 - 3
NAMES = ("one", "two", "gather", "scatter", "loan", "parts")


def mine(workspace: Workspace, number: int, rows: int) -> Tensor:
    """Different on every rank, in every call, at every place."""
    return torch.arange(rows * workspace.size, dtype=torch.int64) * 1000 + number * 10 + workspace.rank


def step(workspace: Workspace, name: str, number: int, rows: int) -> bool:
    """Make a call; whether its result is right."""
    size, rank = workspace.size, workspace.rank
    value = mine(workspace, number, rows)
    all_of = [value - rank + peer for peer in range(size)]
    total = torch.stack(all_of).sum(0)
    if name == "one":
        return torch.equal(workspace.one_shot_all_reduce(value), total)
    if name == "two":
        return torch.equal(workspace.two_shot_all_reduce(value), total)
    if name == "gather":
        return torch.equal(workspace.all_gather(value), torch.cat(all_of))
    if name == "scatter":
        return torch.equal(workspace.reduce_scatter(value), total[rank * rows : (rank + 1) * rows])
    parts = 3 if name == "parts" else 1
    with workspace.borrow((parts, len(value)), value.dtype, parts) as loan:
        right = True
        for part in range(parts):
            loan.mine[part].copy_(value + part)
            loan.publish()
            right &= all(torch.equal(loan.of(peer, part)[part], all_of[peer] + part) for peer in loan.others())
        return right


@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(1, 4),
    calls=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 700)), min_size=1, max_size=12),
    first_step=st.sampled_from([0, JUST_BEFORE_THE_WRAP]),
)
def test_any_sequence_is_right(size: int, calls: Sequence[tuple[str, int]], first_step: int) -> None:
    """Slots of 4 KB: up to several chunks a call, around the end of the counters as well."""

    def job(workspace: Workspace) -> list[bool]:
        return [step(workspace, name, number, rows) for number, (name, rows) in enumerate(calls)]

    with Team(size, first_step=first_step) as team:
        assert team.run(job) == [[True] * len(calls)] * size


def test_ranks_at_their_own_pace_do_not_overtake_each_other() -> None:
    """Rank 0 may be slots ahead, never more: what a slow rank reads is what was meant for it."""

    def job(workspace: Workspace) -> bool:
        right = True
        for number in range(300):
            # Busy in turn, so that each rank is now behind, now ahead.
            torch.ones(1 + 4000 * ((number + workspace.rank) % workspace.size)).sum()
            right &= step(workspace, NAMES[number % 4], number, number % 40)
        return right

    with Team(3) as team:
        assert team.run(job) == [True] * 3


def test_the_input_may_overlap_the_result_in_any_way() -> None:
    def job(workspace: Workspace) -> bool:
        line = torch.arange(64.0)
        expected = torch.arange(60.0) * 2
        workspace.all_reduce(line[:60], out=line[4:])
        whole, part = torch.arange(64.0), torch.arange(8.0, 40.0)
        workspace.all_gather(whole[8:40], out=whole)
        rows = torch.arange(64.0)
        workspace.reduce_scatter(rows, out=rows[16:48])
        own = torch.arange(64.0)[workspace.rank * 32 :][:32] * 2
        return torch.equal(line[4:], expected) and torch.equal(whole, part.repeat(2)) and torch.equal(rows[16:48], own)

    with Team(2) as team:
        assert team.run(job) == [True] * 2


# -- what goes wrong --------------------------------------------------------------------------------------------------


def errors_of(team: Team, job: Callable[[Workspace], Any]) -> list[str]:
    errors = team.run(job)
    assert [type(error) for error in errors] == [SharedMemoryError] * len(errors), errors
    return [str(error) for error in errors]


def test_ranks_that_call_different_things_are_both_told() -> None:
    def job(workspace: Workspace) -> None:
        if workspace.rank:
            workspace.one_shot_all_reduce(torch.ones(5), "max")
        else:
            workspace.all_gather(torch.ones(3))

    with Team(2) as team:
        errors = errors_of(team, job)
    told = {"all-gather of 12 bytes a rank": 10, "one-shot all-reduce (max, torch.float32) of 20 bytes a rank": 11}
    assert any(f"rank {rank} called {what}" in error for what, rank in told.items() for error in errors)
    assert all("team" in error and "next step" in error for error in errors)


def test_ranks_with_different_sizes_are_told() -> None:
    with Team(2) as team:
        errors = errors_of(team, lambda workspace: workspace.all_reduce(torch.ones(1000 + workspace.rank)))
    assert any("of 4000 bytes" in error or "of 4004 bytes" in error for error in errors)


def test_a_rank_that_does_not_come_is_named_and_the_late_one_is_told() -> None:
    gone = threading.Event()

    def job(workspace: Workspace) -> Tensor:
        if workspace.rank == 2:
            gone.wait(30)
        try:
            return workspace.all_reduce(torch.ones(4))
        finally:
            gone.set()

    with Team(3, timeout_s=0.3) as team:
        errors = errors_of(team, job)
    assert all("rank 12 did not come within 0.3 s" in error for error in errors)
    assert "as rank 1" in errors[2]


def test_nothing_works_after_a_failure() -> None:
    with Team(2, timeout_s=0.1) as team:
        first, second = team.workspaces
        with pytest.raises(SharedMemoryError, match="rank 11 did not come"):
            first.all_reduce(torch.ones(4))
        for call in (second.one_shot_all_reduce, second.two_shot_all_reduce, second.all_gather, second.reduce_scatter):
            with pytest.raises(SharedMemoryError, match="as rank 10 noticed"):
                call(torch.ones(4))
        with pytest.raises(SharedMemoryError, match="as rank 10 noticed"):
            second.borrow((1,), torch.float32)


def test_a_loan_that_is_not_published_is_missed() -> None:
    with (
        Team(2, timeout_s=0.1) as team,
        pytest.raises(SharedMemoryError, match="rank 11 did not come"),
        team.workspaces[0].borrow((4,), torch.float32) as loan,
    ):
        loan.of(1)


def test_a_loan_is_one_at_a_time_and_has_so_many_parts() -> None:
    with Team(1) as team, team.workspaces[0].borrow((4,), torch.float32, parts=2) as loan:
        with pytest.raises(SharedMemoryError, match="has not been returned"):
            team.workspaces[0].borrow((4,), torch.float32)
        loan.publish(2)
        with pytest.raises(SharedMemoryError, match="has 2 parts"):
            loan.publish()


def test_memory_that_is_let_go_of_is_not_used() -> None:
    with Team(1) as team:
        (workspace,) = team.workspaces
        kept = workspace.borrow((4,), torch.float32).mine.fill_(7)
        workspace.close()
        workspace.close()
        with pytest.raises(SharedMemoryError, match="closed"):
            workspace.all_reduce(torch.ones(4))
        assert kept.tolist() == [7] * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.all_reduce(torch.ones(2), "band"), "no 'band' of torch.float32"),
        (lambda w: w.all_reduce(torch.ones(2, dtype=torch.int32), "avg"), "no 'avg' of torch.int32"),
        (lambda w: w.all_reduce(torch.ones(2, dtype=torch.complex64)), "no 'sum' of torch.complex64"),
        (lambda w: w.all_reduce(torch.ones(2), "average"), "no 'average'"),
        (lambda w: w.all_reduce(torch.ones(2), out=torch.ones(3)), "`out` is torch.float32 .3,."),
        (lambda w: w.all_gather(torch.ones(2), out=torch.ones(4).double()), "`out` is torch.float64"),
        (lambda w: w.reduce_scatter(torch.ones(3)), "cannot scatter a tensor of shape .3,. over 2"),
        (lambda w: w.reduce_scatter(torch.ones(())), "cannot scatter a tensor of shape .. over 2"),
        (lambda w: w.all_reduce(torch.ones(2, device="meta")), "lies on meta"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_before_anybody_waits(
    call: Callable[[Workspace], Any], message: str
) -> None:
    with Team(2) as team:
        with pytest.raises(SharedMemoryError, match=message):
            call(team.workspaces[0])
        assert team.run(lambda workspace: workspace.all_reduce(torch.ones(1)).item()) == [2.0, 2.0]
