"""The graphs of several ranks together: one order in each group, no circle between groups, messages in pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from counterpoint.errors import GroupError
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.verify import Finding, verify_ranks

c10d = torch.ops._c10d_functional
GROUPS = {"all": (0, 1, 2, 3), "low": (0, 1), "high": (2, 3), "even": (0, 2), "odd": (1, 3)}

Program = Callable[[GraphBuilder], None]


def built(program: Program) -> GraphModule:
    builder = GraphBuilder(GROUPS)
    program(builder)
    return builder.finish()


def findings(programs: Mapping[int, Program], groups: Mapping[Any, Any] = GROUPS) -> tuple[Finding, ...]:
    return verify_ranks({rank: built(program) for rank, program in programs.items()}, groups)


def reduces(*steps: tuple[str, ...]) -> Program:
    """All-reduces in order: (group, reduce op, shape)."""

    def program(b: GraphBuilder) -> None:
        for i, (group, *rest) in enumerate(steps):
            op = rest[0] if rest else "sum"
            b.all_reduce(b.input(f"x{i}", (8,)), op, group)

    return program


def test_equal_programs_pass() -> None:
    same = reduces(("all",), ("all", "max"))
    assert findings(dict.fromkeys(range(4), same)) == ()


def test_ranks_of_different_groups_may_differ() -> None:
    low, high = reduces(("low",), ("all",)), reduces(("high",), ("high",), ("all",))
    assert findings({0: low, 1: low, 2: high, 3: high}) == ()


@pytest.mark.parametrize(
    "other",
    [
        reduces(("all", "max"), ("all",)),
        reduces(("all",)),
        reduces(("all",), ("all", "max"), ("all",)),
        lambda b: (b.all_reduce(b.input("x", (16,)), "sum", "all"), b.all_reduce(b.input("y", (8,)), "max", "all")),
        lambda b: (
            b.all_reduce(b.input("x", (4,), torch.float64), "sum", "all"),
            b.all_reduce(b.input("y", (8,)), "max", "all"),
        ),
        lambda b: (b.reduce_scatter(b.input("x", (8,)), "sum", "all"), b.all_reduce(b.input("y", (8,)), "max", "all")),
    ],
)
def test_first_difference_in_order_is_reported(other: Program) -> None:
    same = reduces(("all",), ("all", "max"))
    (found,) = findings({0: same, 1: same, 2: other, 3: same})
    assert found.code == "order-differs"
    assert "on rank 0" in found.message
    assert "on rank 2" in found.message


def test_groups_started_in_a_circle_deadlock() -> None:
    # Each pair of ranks agrees on the order in its own group, and yet 0 waits for 1 for 3 for 2 for 0.
    ranks = {
        0: reduces(("low",), ("even",)),
        1: reduces(("odd",), ("low",)),
        2: reduces(("even",), ("high",)),
        3: reduces(("high",), ("odd",)),
    }
    (found,) = findings(ranks)
    assert found.code == "deadlock"
    assert all(f"rank {rank} is at" in found.message for rank in range(4))


def test_groups_started_in_one_order_pass() -> None:
    ranks = {
        0: reduces(("low",), ("even",)),
        1: reduces(("low",), ("odd",)),
        2: reduces(("high",), ("even",)),
        3: reduces(("high",), ("odd",)),
    }
    assert findings(ranks) == ()


def test_groups_may_have_other_names_on_other_ranks() -> None:
    tables = {0: {"mine": (0, 1)}, 1: {"ours": (0, 1)}}
    graphs = {}
    for rank, name in ((0, "mine"), (1, "ours")):
        builder = GraphBuilder(tables[rank])
        builder.all_reduce(builder.input("x", (8,)), "sum", name)
        graphs[rank] = builder.finish()
    assert verify_ranks(graphs, tables) == ()


def test_group_without_known_ranks_is_an_error() -> None:
    with pytest.raises(GroupError, match="low"):
        findings({0: reduces(("low",))}, {"all": (0, 1)})


def exchange(peer_to: int, peer_from: int, tag: int = 0, receive_first: bool = False) -> Program:
    def program(b: GraphBuilder) -> None:
        out, into = b.input("out", (8,)), b.input("into", (8,))
        if receive_first:
            b.wait(b.call(c10d.irecv.default, into, peer_from, tag, "all"))
            b.wait(b.call(c10d.isend.default, out, peer_to, tag, "all"))
        else:
            sent = b.call(c10d.isend.default, out, peer_to, tag, "all")
            received = b.call(c10d.irecv.default, into, peer_from, tag, "all")
            b.wait(received)
            b.wait(sent)

    return program


@pytest.mark.messages
def test_ring_of_messages_passes() -> None:
    assert findings({rank: exchange((rank + 1) % 4, (rank - 1) % 4) for rank in range(4)}) == ()


@pytest.mark.messages
def test_message_with_another_tag_is_unmatched() -> None:
    found = findings({0: exchange(1, 1), 1: exchange(0, 0, tag=7)})
    assert {finding.code for finding in found} == {"unmatched-message"}


@pytest.mark.messages
def test_all_ranks_waiting_for_a_message_before_sending_deadlock() -> None:
    found = findings({rank: exchange(1 - rank, 1 - rank, receive_first=True) for rank in range(2)})
    assert [finding.code for finding in found] == ["deadlock"]


@pytest.mark.messages
def test_batch_of_messages_matches_single_ones() -> None:
    def batch(b: GraphBuilder) -> None:
        out, into = b.input("out", (8,)), b.input("into", (8,))
        b.call(c10d.batch_p2p_ops.default, ["isend", "irecv"], [1, 1], [0, 0], [out, into], "all")

    assert findings({0: batch, 1: exchange(0, 0)}) == ()
    assert findings({0: batch, 1: exchange(2, 0)})
