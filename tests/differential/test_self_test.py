"""The self-test of a group on real ranks: sums, speed, capabilities, and who differs or stays away."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from counterpoint.cli.doctor.group import group_findings
from counterpoint.errors import AgreementError
from counterpoint.runtime.self_test import exchanged
from tests.support.gloo import PerRank, RanksByWorldSize


def findings(variable: str) -> list[tuple[str, str, str]]:
    os.environ["COUNTERPOINT_PASSES"] = variable
    try:
        return [(one.name, one.state.value, one.said) for one in group_findings(60.0, lambda _: None)]
    finally:
        del os.environ["COUNTERPOINT_PASSES"]


def alone(facts: dict[str, Any]) -> str:
    """Rank 1 says nothing."""
    if dist.get_rank() == 1:
        return "silent"
    try:
        exchanged(facts, 0.5)
    except AgreementError as error:
        return error.what
    return "heard"


def test_a_group_that_works_and_then_one_whose_ranks_differ(ranks: RanksByWorldSize) -> None:
    one, other = ranks(2).run(findings, "")
    assert one == other
    states = {name: state for name, state, _ in one}
    assert set(states) == {
        *("ranks", "same program", "sums", "latency and bandwidth", "messages", "shared memory", "symmetric memory"),
    }
    assert "broken" not in states.values()
    said = {name: text for name, _, text in one}
    assert said["ranks"].startswith("2 ranks, backend gloo: 2 on ")
    assert "Gbit/s a rank" in said["latency and bandwidth"]

    differing, _ = ranks(2).run(findings, PerRank(["", "dedup-collectives"]))
    (told,) = [text for name, state, text in differing if state == "broken"]
    assert "the options: " in told
    assert "on rank 1" in told
    assert "environment variable COUNTERPOINT_PASSES" in told


def test_a_rank_that_says_nothing_is_named(ranks: RanksByWorldSize) -> None:
    heard, _ = ranks(2).run(alone, {})
    assert heard == "rank 1 said nothing within 0.5 s"
