"""Claims about storage classes and conflicts: what may share memory is one class, what conflicts keeps its order."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.fx import Graph, Node

from counterpoint.ir.alias import Ambient, Hazards, started_by, waits_of
from counterpoint.ir.build import GraphBuilder

ATEN = torch.ops.aten
C10D = torch.ops._c10d_functional


@pytest.fixture
def b() -> GraphBuilder:
    return GraphBuilder({"dp": range(2)})


def of(b: GraphBuilder) -> Hazards:
    return Hazards.of(b.graph)


def test_views_in_place_results_and_waits_share(b: GraphBuilder) -> None:
    x = b.input("x", (4, 4))
    view = b.call(ATEN.view.default, x, [16])
    same = b.call(ATEN.add_.Tensor, view, 1)
    start = b.call(C10D.all_reduce_.default, same, "sum", "dp")
    wait = b.wait(start)
    hazards = of(b)
    assert all(hazards.may_share(x, other) for other in (view, same, start, wait))


def test_fresh_results_do_not_share(b: GraphBuilder) -> None:
    x = b.input("x", (4, 4))
    y = b.input("y", (4, 4))
    total = b.call(ATEN.add.Tensor, x, y)
    start = b.call(C10D.all_reduce.default, total, "sum", "dp")
    hazards = of(b)
    assert not any(hazards.may_share(a, c) for a, c in ((x, y), (total, x), (start, total)))


def test_possible_copies_count_as_sharing_and_as_reading(b: GraphBuilder) -> None:
    x = b.input("x", (4, 4))
    flat = b.call(ATEN.reshape.default, x, [16])
    unsafe = b.call(ATEN._unsafe_view.default, x, [16])
    write = b.call(ATEN.add_.Tensor, x, 1)
    hazards = of(b)
    assert hazards.may_share(flat, x)
    assert hazards.may_share(unsafe, x)
    assert hazards.conflict(flat, write) is not None


def test_a_view_may_cross_a_write(b: GraphBuilder) -> None:
    x = b.input("x", (4, 4))
    view = b.call(ATEN.view.default, x, [16])
    write = b.call(ATEN.add_.Tensor, x, 1)
    assert of(b).conflict(view, write) is None


def test_reads_conflict_with_writes_only(b: GraphBuilder) -> None:
    x = b.input("x", (4,))
    view = b.call(ATEN.view.default, x, [4])
    first, second = b.call(ATEN.relu.default, x), b.call(ATEN.neg.default, view)
    write = b.call(ATEN.mul_.Tensor, x, 2)
    hazards = of(b)
    assert hazards.conflict(first, second) is None
    assert hazards.conflict(first, write) is hazards.conflict(write, second) is not None
    assert hazards.touching(x) == [first, second, write]


def test_elements_of_a_fresh_list_are_different_buffers(b: GraphBuilder) -> None:
    x, y = b.input("x", (4,)), b.input("y", (4,))
    start = b.call(C10D.all_reduce_coalesced.default, [x, y], "sum", "dp")
    one, two = b.call(operator.getitem, start, 0), b.call(operator.getitem, start, 1)
    again = b.call(operator.getitem, start, 0)
    hazards = of(b)
    assert not hazards.may_share(one, two)
    assert hazards.may_share(one, again)


def test_elements_of_an_in_place_list_are_their_inputs(b: GraphBuilder) -> None:
    x, y = b.input("x", (4,)), b.input("y", (4,))
    start = b.call(C10D.all_reduce_coalesced_.default, [x, y], "sum", "dp")
    two = b.call(operator.getitem, start, 1)
    hazards = of(b)
    assert hazards.may_share(two, y)


def test_chunks_share_with_the_whole(b: GraphBuilder) -> None:
    x = b.input("x", (4,))
    chunk = b.call(operator.getitem, b.call(ATEN.split.Tensor, x, 2), 1)
    assert of(b).may_share(chunk, x)


def test_a_buffer_in_flight_is_held_until_the_wait(b: GraphBuilder) -> None:
    x = b.input("x", (4,))
    start = b.call(C10D.all_reduce.default, x, "sum", "dp")
    wait = b.wait(start)
    write = b.call(ATEN.zero_.default, x)
    hazards = of(b)
    assert hazards.conflict(wait, write) is not None
    assert wait in hazards.order_edges(b.graph.nodes)[write]
    assert started_by(wait) is start
    assert list(waits_of(start)) == [wait]


def test_reading_an_in_place_result_elsewhere_must_follow_the_wait(b: GraphBuilder) -> None:
    x = b.input("x", (4,))
    wait = b.wait(b.call(C10D.all_reduce_.default, x, "sum", "dp"))
    read = b.call(ATEN.relu.default, x)
    assert of(b).order_edges(b.graph.nodes)[read] == (wait,)


def test_draws_keep_their_order_even_in_place(b: GraphBuilder) -> None:
    x, y = b.input("x", (4,)), b.input("y", (4,))
    draws = [b.call(ATEN.bernoulli.default, x), b.call(ATEN.uniform_.default, y), b.call(ATEN.rand.default, [4])]
    hazards = of(b)
    assert hazards.conflict(draws[0], draws[1]) is Ambient.GENERATOR
    assert hazards.conflict(draws[1], draws[2]) is Ambient.GENERATOR


def test_collectives_have_no_order_of_their_own(b: GraphBuilder) -> None:
    x, y = b.input("x", (4,)), b.input("y", (4,))
    one = b.call(C10D.all_reduce.default, x, "sum", "dp")
    two = b.call(C10D.all_reduce.default, y, "sum", "dp")
    assert of(b).conflict(one, two) is None


@pytest.mark.messages
def test_messages_keep_their_order() -> None:
    graph = Graph()
    a, c = graph.placeholder("a"), graph.placeholder("c")
    send = graph.call_function(C10D.isend.default, (a, 1, 0, "dp"))
    receive = graph.call_function(C10D.irecv.default, (c, 1, 0, "dp"))
    assert Hazards.of(graph).conflict(send, receive) is Ambient.WIRE


def test_nothing_that_has_effects_crosses_a_barrier(b: GraphBuilder) -> None:
    x, y = b.input("x", (4,)), b.input("y", (4,))
    start = b.call(C10D.all_reduce.default, x, "sum", "dp")
    compute = b.call(ATEN.relu.default, y)
    barrier = b.graph.call_function(print, (x,))
    hazards = of(b)
    assert hazards.conflict(start, barrier) is not None
    assert hazards.conflict(compute, barrier) is None
    assert start in hazards.order_edges(b.graph.nodes)[barrier]


def test_a_barrier_may_write_and_return_its_inputs(b: GraphBuilder) -> None:
    x = b.input("x", (4,))
    read = b.call(ATEN.relu.default, x)
    barrier = b.graph.call_function(print, (x,))
    hazards = of(b)
    assert hazards.conflict(read, barrier) is not None
    assert hazards.may_share(barrier, x)


def test_reads_of_one_attribute_share() -> None:
    graph = Graph()
    one, two, other = (graph.create_node("get_attr", name) for name in ("weight", "weight", "bias"))
    hazards = Hazards.of(graph)
    assert hazards.may_share(one, two)
    assert not hazards.may_share(one, other)


def test_taking_back_restores_classes_and_writers(b: GraphBuilder) -> None:
    x, y = b.input("x", (4,)), b.input("y", (4,))
    old = b.call(ATEN.add_.Tensor, x, 1)
    hazards = of(b)

    def picture(nodes: list[Node]) -> list[object]:
        return [(hazards.storage.find(n), hazards.writers(n), hazards.accesses(n)) for n in nodes]

    before = picture([x, y, old])
    hazards.begin()
    new = b.call(ATEN.add_.Tensor, y, 1)
    hazards.add(new)
    mixed = b.graph.call_function(print, (x, y))
    hazards.add(mixed)
    hazards.discard(old)
    assert hazards.may_share(x, y)
    hazards.take_back()
    assert picture([x, y, old]) == before
