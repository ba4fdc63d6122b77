"""Launch orders of all ranks: planted deadlocks are found with ranks, groups and nodes, safe orders pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule

from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.ops import Kind
from counterpoint.sim.deadlock import Deadlock, find_deadlock
from counterpoint.sim.launches import Launch, Meeting, launches_of
from tests.support.strategies import distributed_graphs

C10D = torch.ops._c10d_functional
MESH = {"rows": (0, 1), "columns": (0, 2), "world": (0, 1, 2, 3)}

Body = Callable[[GraphBuilder, torch.fx.Node], list[torch.fx.Node]]


def program(body: Body) -> GraphModule:
    b = GraphBuilder(MESH)
    return b.finish(*body(b, b.input("x", (8,))))


def reduces(*groups: str) -> Body:
    """An all-reduce over each of these groups, one after the other, none needing another."""
    return lambda b, x: [b.all_reduce(x, "sum", group) for group in groups]


def message(kind: str, peer: int, tag: int = 0) -> Body:
    def body(b: GraphBuilder, x: torch.fx.Node) -> list[torch.fx.Node]:
        operator = C10D.isend.default if kind == "send" else C10D.irecv.default
        return [b.wait(b.call(operator, x, peer, tag, "world"))]

    return body


def batch(*entries: tuple[str, int]) -> Body:
    def body(b: GraphBuilder, x: torch.fx.Node) -> list[torch.fx.Node]:
        words, peers = [f"i{word}" for word, _ in entries], [peer for _, peer in entries]
        buffers = [b.call(torch.ops.aten.clone.default, x) for _ in entries]
        return [b.call(C10D.batch_p2p_ops.default, words, peers, [0] * len(entries), buffers, "world")]

    return body


def both(*bodies: Body) -> Body:
    return lambda b, x: [node for body in bodies for node in body(b, x)]


def nothing(b: GraphBuilder, x: torch.fx.Node) -> list[torch.fx.Node]:
    return []


def play(*bodies: Body) -> Deadlock | None:
    """What becomes of ranks that run these programs; ranks beyond the last run the last."""
    programs = [program(body) for body in bodies]
    groups = GroupTable(MESH)
    graphs = {rank: programs[min(rank, len(programs) - 1)] for rank in range(4)}
    return find_deadlock({rank: launches_of(graph, groups, rank, 4) for rank, graph in graphs.items()})


@pytest.mark.parametrize(
    "bodies",
    [
        [reduces("rows", "columns", "world")],
        # Different groups of one kind: (0, 1) first reduces its rows, (2, 3) its rows as well, in their own order.
        [reduces("rows", "rows"), reduces("rows", "rows")],
        [nothing],
    ],
)
def test_orders_that_fit_pass(bodies: list[Body]) -> None:
    assert play(*bodies) is None


@pytest.mark.messages
@pytest.mark.parametrize(
    "bodies",
    [
        [both(message("send", 1), message("recv", 1)), both(message("recv", 0), message("send", 0)), nothing],
        [batch(("send", 1), ("recv", 1)), batch(("send", 0), ("recv", 0)), nothing],
        # A ring of four in one batch each.
        [batch(("send", (r + 1) % 4), ("recv", (r - 1) % 4)) for r in range(4)],
    ],
)
def test_messages_that_fit_pass(bodies: list[Body]) -> None:
    assert play(*bodies) is None


def test_crossed_groups_are_found() -> None:
    # Around the mesh everybody begins with a group in which the other one begins elsewhere.
    first, second = reduces("rows", "columns"), reduces("columns", "rows")
    found = play(first, second, second, first)
    assert found is not None
    assert set(found.ranks) == {0, 1, 2, 3}
    assert set(found.groups) == {"rows", "columns"}
    assert found.nodes == ("all_reduce_default",)
    assert "wait for each other" in str(found)
    assert "rank 0 stands at all_reduce all_reduce_default of group rows and waits for rank 1" in str(found)


def test_two_ranks_that_swap_two_groups_over_the_same_ranks_are_found() -> None:
    b = {"one": (0, 1), "two": (0, 1, 2, 3)}
    orders = {}
    for rank in range(4):
        names = ("one", "two") if rank != 1 else ("two", "one")
        built = GraphBuilder(b)
        x = built.input("x", (8,))
        gm = built.finish(*[built.all_reduce(x, "sum", name) for name in names])
        orders[rank] = launches_of(gm, GroupTable(b), rank, 4)
    found = find_deadlock(orders)
    assert found is not None
    assert (set(found.ranks), set(found.groups)) == ({0, 1}, {"one", "two"})


@pytest.mark.messages
def test_two_sends_that_face_each_other_are_found() -> None:
    found = play(both(message("send", 1), message("recv", 1)), both(message("send", 0), message("recv", 0)), nothing)
    assert found is not None
    assert found.ranks == (0, 1)
    assert found.nodes == ("isend_default",)


@pytest.mark.messages
def test_a_receive_hoisted_over_a_send_is_found() -> None:
    # As a reordering pass once did it: everybody receives first, from the left.
    found = play(*(both(message("recv", (r - 1) % 4), message("send", (r + 1) % 4)) for r in range(4)))
    assert found is not None
    assert len(found.cycle) == 4


@pytest.mark.messages
def test_a_collective_between_two_ends_of_a_message_is_found() -> None:
    found = play(
        both(message("send", 1), reduces("world")), both(reduces("world"), message("recv", 0)), reduces("world")
    )
    assert found is not None
    assert found.ranks == (0, 1)
    assert {one.launch.kind for one in found.cycle} == {Kind.SEND, Kind.ALL_REDUCE}


def test_a_rank_that_never_comes_is_found_without_a_ring() -> None:
    found = play(reduces("world"), reduces("world"), reduces("world"), nothing)
    assert found is not None
    assert (found.ranks, found.cycle) == ((0, 1, 2), ())
    assert "never come" in str(found)
    assert all(one.waits_for == (3,) for one in found.stuck)


@pytest.mark.messages
def test_messages_of_different_tags_do_not_meet() -> None:
    assert play(message("send", 1, tag=1), message("recv", 0, tag=2), nothing) is not None
    assert play(message("send", 1, tag=2), message("recv", 0, tag=2), nothing) is None


def gathers(b: GraphBuilder, x: torch.fx.Node) -> list[torch.fx.Node]:
    return [b.all_gather(x, "world")]


def half(b: GraphBuilder, x: torch.fx.Node) -> list[torch.fx.Node]:
    return [b.all_reduce(b.call(torch.ops.aten.slice.Tensor, x, 0, 0, 4), "sum", "world")]


@pytest.mark.parametrize(("other", "told"), [(gathers, "all_gather"), (half, "of 16 bytes")])
def test_ranks_that_meet_with_different_things_are_found(other: Body, told: str) -> None:
    found = play(reduces("world"), other)
    assert found is not None
    assert "different collectives" in found.mismatch
    assert told in found.mismatch


def test_four_thousand_ranks_are_played() -> None:
    world = tuple(range(4096))
    tiles = [tuple(range(8 * k, 8 * k + 8)) for k in range(512)]
    orders = {
        rank: [
            Launch("a", "tp", Kind.ALL_REDUCE, (Meeting(tiles[rank // 8]),)),
            Launch("b", "dp", Kind.ALL_REDUCE, (Meeting(world),)),
        ]
        * 3
        for rank in world
    }
    assert find_deadlock(orders) is None
    orders[77] = [orders[77][1], orders[77][0]] * 3
    found = find_deadlock(orders)
    assert found is not None
    assert 77 in found.ranks


@settings(max_examples=50, deadline=None)
@given(distributed_graphs())
def test_one_program_on_all_ranks_never_deadlocks(case) -> None:
    orders = {rank: launches_of(case.gm, case.groups, rank, case.world_size) for rank in range(case.world_size)}
    assert find_deadlock(orders) is None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["rows", "columns", "world"]), max_size=6), st.randoms(use_true_random=False))
def test_every_finding_names_a_rank_that_waits(names: list[str], draw) -> None:
    """Each rank launches the same collectives in an order of its own: the orders fit where they are equal."""
    graphs = {}
    for rank in range(4):
        own = list(names)
        draw.shuffle(own)
        graphs[rank] = own
    found = play(*(reduces(*graphs[rank]) for rank in range(4)))
    if len({tuple(own) for own in graphs.values()}) == 1:
        assert found is None
    if found is not None:
        assert all(one.waits_for and one.rank not in one.waits_for for one in found.stuck)
        assert all(
            later.rank in one.waits_for
            for one, later in zip(found.cycle, [*found.cycle[1:], *found.cycle[:1]], strict=True)
        )
