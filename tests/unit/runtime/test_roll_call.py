"""Who stands where after a failure: the missing, those elsewhere, and a store that has gone with its process."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import torch.distributed as dist

from counterpoint.runtime.roll_call import Standing, call_roll
from counterpoint.runtime.store import ranks_text

OWN = Standing(graph="0/0 backward", collective="all_reduce sum float32 8", node="all_reduce", work="a", sequence=7)


class Gone:
    """A store whose holder has ended."""

    def set(self, *_: Any) -> None:
        raise RuntimeError("Broken pipe")


def heard(**others: Standing) -> Any:
    """What rank 0 of 3 learns when these ranks have spoken."""
    store = dist.HashStore()
    # The topic belongs to the ranks of the group; a first call leaves it behind.
    call_roll(store, (0, 1, 2), 0, OWN, within_s=0.01)
    (topic,) = {key.rpartition("/")[0] for key in store.list_keys()}
    for rank, standing in others.items():
        store.set(f"{topic}/{rank.removeprefix('rank')}", json.dumps(asdict(standing)))
    return call_roll(store, (0, 1, 2), 0, OWN, within_s=0.05)


def test_ranks_that_say_nothing_are_missing() -> None:
    roll = heard(rank1=OWN)
    assert roll.what == (
        "rank 2 did not come to all_reduce sum float32 8 at node all_reduce of graph 0/0 backward (a), "
        "where ranks 0, 1 wait"
    )
    assert "look at the log of rank 2" in roll.next_step
    assert "ranks 1, 2 did not come" in heard().what


def test_a_rank_in_another_collective_or_another_step_is_told() -> None:
    roll = heard(rank1=replace(OWN, collective="broadcast float32 4", node="broadcast"), rank2=OWN)
    assert "rank 1 stands in broadcast float32 4 at node broadcast" in roll.what
    assert "the same order" in roll.next_step
    behind = heard(rank1=OWN, rank2=replace(OWN, sequence=5))
    assert "its number 5 in the group, where rank 0 has 7" in behind.what


def test_when_all_are_there_the_network_has_failed() -> None:
    assert "the network between them failed" in heard(rank1=OWN, rank2=OWN).what


def test_a_store_that_is_gone_is_no_second_error() -> None:
    roll = call_roll(Gone(), (0, 1), 1, OWN, within_s=0.01)
    assert "the store does not answer" in roll.what
    assert roll.next_step


def test_many_ranks_are_not_all_named() -> None:
    assert ranks_text([3]) == "rank 3"
    assert ranks_text(range(1000)).endswith("15 and 984 more")
