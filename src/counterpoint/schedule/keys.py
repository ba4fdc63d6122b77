"""Who goes first: pure functions of a problem. Ties go by original order, so the numbers of transfers end every key."""

from __future__ import annotations

from itertools import accumulate

from counterpoint.schedule.problem import Problem, Transfer


def due_steps(problem: Problem) -> tuple[int, ...]:
    """The step for which each transfer is needed first, be it by way of other transfers."""
    due = [transfer.first_use for transfer in problem.transfers]
    # Who needs another is due no earlier than it can start; one walk from the last use backwards sees both.
    for number in sorted(range(len(due)), key=lambda n: (problem.transfers[n].after, n), reverse=True):
        for needed in problem.transfers[number].needs:
            due[needed] = min(due[needed], due[number])
    return tuple(due)


def latest_starts(problem: Problem) -> tuple[float, ...]:
    """When each transfer must start at the latest so that nobody waits, were the compute stream never to stand still.

    Transfers of one channel follow each other in the order in which they are due.
    """
    begins_us = tuple(accumulate(problem.steps_us, initial=0.0))
    latest = [0.0] * len(problem.transfers)
    needed_us = [float("inf")] * len(problem.transfers)
    next_us: dict[str, float] = {}
    due = due_steps(problem)
    for number in sorted(range(len(latest)), key=lambda n: (due[n], n), reverse=True):
        transfer = problem.transfers[number]
        due_us = min(begins_us[due[number]], needed_us[number])
        if transfer.grows:
            # What only the caller reads is due at the end, and would push everything before it there.
            due_us = min(due_us, next_us.get(transfer.channel, due_us))
        latest[number] = due_us - transfer.network_us
        for needed in transfer.needs:
            needed_us[needed] = min(needed_us[needed], latest[number] - transfer.launch_us)
        if transfer.grows:
            next_us[transfer.channel] = latest[number]
    return tuple(latest)


def reserves(problem: Problem, caution: float) -> tuple[float, ...]:
    """How much earlier than at the latest each transfer is due: a part of its own length, and the longest transfer that
    may be under way on its channel when it wants to start."""
    longest: dict[str, float] = {}
    for transfer in problem.transfers:
        if not transfer.grows:
            longest[transfer.channel] = max(longest.get(transfer.channel, 0.0), transfer.network_us)
    return tuple(
        caution * transfer.network_us + longest.get(transfer.channel, 0.0) + transfer.launch_us
        for transfer in problem.transfers
    )


def urgency(transfer: Transfer, number: int, latest_us: tuple[float, ...]) -> tuple[float, int]:
    """The order on a channel: what is due first goes first; of equally urgent ones the one that stands first."""
    return (latest_us[number] if transfer.grows else float(transfer.first_use), number)
