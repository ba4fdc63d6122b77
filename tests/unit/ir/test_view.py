"""Claims about the view: order, dependence against brute force, staleness, and merges against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Graph, Node

from counterpoint.errors import GraphError, StaleViewError
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.collective import Collective
from counterpoint.ir.edit import GraphEditor, Transaction
from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView

ATEN = torch.ops.aten
C10D = torch.ops._c10d_functional


def reduced(b: GraphBuilder, tensor: Node) -> tuple[Node, Node]:
    start = b.call(C10D.all_reduce.default, tensor, "sum", "dp")
    return start, b.wait(start)


@pytest.fixture
def b() -> GraphBuilder:
    return GraphBuilder({"dp": range(2)})


def test_order_users_and_neighbours(b: GraphBuilder) -> None:
    x = b.input("x", (4,))
    one, two = b.call(ATEN.relu.default, x), b.call(ATEN.neg.default, x)
    total = b.call(ATEN.add.Tensor, two, one)
    view = GraphView.of(b.finish(total))
    assert [view.index(node) for node in (x, one, two, total)] == [0, 1, 2, 3]
    assert view.users(x) == (one, two)
    assert view.first_user(x) is one
    assert view.first_user(view.nodes[-1]) is None
    assert view.between(x, total) == (one, two)
    assert view.earliest(total) is two
    assert view.latest(one) is total
    assert view.earliest(x) is None
    assert view.descendants(one) == (total, view.nodes[-1])


def test_dependence_through_values(b: GraphBuilder) -> None:
    x, y = b.input("x", (4,)), b.input("y", (4,))
    s1, w1 = reduced(b, x)
    s2, w2 = reduced(b, y)
    s3, w3 = reduced(b, b.call(ATEN.add.Tensor, w1, y))
    view = GraphView.of(b.finish(w2, w3))
    assert view.depends(s3, s1)
    assert not view.depends(s1, s3)
    assert not view.depends(s3, s2)
    assert view.independent(s1, s2)
    assert not view.independent(s1, s1)
    assert view.collectives_before(w3) == (s1, s3)
    assert view.collectives_before(s3) == (s1,)
    assert view.depends(w3, x)
    assert not view.depends(w2, w1)
    assert all(isinstance(c, Collective) for c in view.collectives)
    assert isinstance(view.collective(x), Refusal)


def test_dependence_through_conflicts(b: GraphBuilder) -> None:
    x, y = b.input("x", (4,)), b.input("y", (4,))
    s1, w1 = reduced(b, x)
    written = b.call(ATEN.copy_.default, x, y)
    again = b.call(ATEN.relu.default, x)
    s2, w2 = reduced(b, again)
    view = GraphView.of(b.finish(w1, w2))
    assert view.depends(written, w1)
    assert view.depends(s2, s1), "the second sends what was written after the first"
    assert view.latest(w1) is written
    assert view.earliest(again) is written


def test_a_barrier_separates_collectives(b: GraphBuilder) -> None:
    x, y = b.input("x", (4,)), b.input("y", (4,))
    s1, w1 = reduced(b, x)
    b.graph.call_function(print, ())
    s2, w2 = reduced(b, y)
    view = GraphView.of(b.finish(w1, w2))
    assert view.depends(s2, s1)
    assert view.merges().try_merge([s1, s2]) is not None


def test_merging_needs_waits_that_can_be_merged_too(b: GraphBuilder) -> None:
    x, y = b.input("x", (4,)), b.input("y", (4,))
    s1 = b.call(C10D.all_reduce.default, x, "sum", "dp")
    s2 = b.call(C10D.all_reduce.default, y, "sum", "dp")
    w1 = b.wait(s1)
    b.graph.call_function(print, ())
    w2 = b.wait(s2)
    view = GraphView.of(b.finish(w1, w2))
    assert view.independent(s1, s2)
    assert view.merges().try_merge([s1, s2]) is not None


def test_a_graph_in_wrong_order_has_no_view(b: GraphBuilder) -> None:
    x = b.input("x", (4,))
    one = b.call(ATEN.relu.default, x)
    two = b.call(ATEN.neg.default, one)
    one.prepend(two)
    with pytest.raises(GraphError, match="comes later"):
        GraphView.of(b.graph)


# -- staleness --------------------------------------------------------------------------------------------------------


def small() -> tuple[GraphBuilder, list[Node], GraphView]:
    b = GraphBuilder({"dp": range(2)})
    x = b.input("x", (4,))
    nodes = [x, b.call(ATEN.relu.default, x), b.call(ATEN.neg.default, x)]
    gm = b.finish(*nodes[1:])
    return b, nodes, GraphView.of(gm)


def test_an_edit_makes_a_view_stale() -> None:
    b, (x, one, two), view = small()
    with GraphEditor(b.graph).transaction("swap") as tx:
        tx.move(two, before=one)
        with pytest.raises(StaleViewError):
            view.depends(one, x)
    for question in (lambda: view.depends(one, x), lambda: view.index(x), view.merges, lambda: view.collectives):
        with pytest.raises(StaleViewError, match="has changed"):
            question()


def test_an_edit_taken_back_leaves_a_view_good() -> None:
    b, (x, one, two), view = small()
    inside: list[GraphView] = []

    def rewrite(tx: Transaction) -> None:
        new = tx.call(ATEN.relu.default, (two,), after=two)
        tx.replace({two: new})
        inside.append(GraphView.of(b.graph))
        tx.refuse(Refusal("no-pass", "here"))

    GraphEditor(b.graph).attempt("try", rewrite)
    assert view.depends(one, x)
    view.check_all()
    with pytest.raises(StaleViewError):
        inside[0].depends(one, x)


@pytest.mark.parametrize("hand", ["insert", "erase", "move", "arguments"])
def test_changes_by_hand_are_seen_where_they_are_asked_about(hand: str) -> None:
    b, (x, one, two), view = small()
    if hand == "insert":
        b.graph.inserting_before(one).__enter__()
        b.graph.call_function(ATEN.relu.default, (x,))
    elif hand == "erase":
        two.replace_all_uses_with(one)
        b.graph.erase_node(two)
    elif hand == "move":
        one.prepend(two)
    else:
        one.args = (two,)
    with pytest.raises(StaleViewError):
        view.depends(one, x)
    with pytest.raises(StaleViewError):
        view.check_all()


def test_a_node_of_another_graph_is_refused() -> None:
    (_, _, view), (_, others, _) = small(), small()
    with pytest.raises(GraphError, match="not in the graph"):
        view.index(others[0])


# -- against brute force ----------------------------------------------------------------------------------------------


STEPS = ["compute", "reduce", "reduce", "wait", "write", "draw", "in_place", "barrier"]


@st.composite
def tangled(draw: st.DrawFn) -> Graph:
    """Compute, collectives, writes, draws and barriers with random operands."""
    b = GraphBuilder({"dp": range(2)})
    values = [b.input(f"x{k}", (4,)) for k in range(3)]
    starts: list[Node] = []

    def pick(among: list[Node]) -> Node:
        return draw(st.sampled_from(among))

    for _ in range(draw(st.integers(3, 14))):
        kind = draw(st.sampled_from(STEPS))
        if kind == "compute":
            values.append(b.call(ATEN.add.Tensor, pick(values), pick(values)))
        elif kind == "reduce":
            starts.append(b.call(C10D.all_reduce.default, pick(values), "sum", "dp"))
        elif kind == "in_place":
            starts.append(b.call(C10D.all_reduce_.default, pick(values), "sum", "dp"))
        elif kind == "wait" and starts:
            values.append(b.wait(starts.pop(draw(st.integers(0, len(starts) - 1)))))
        elif kind == "write":
            b.call(ATEN.mul_.Tensor, pick(values), 2)
        elif kind == "draw":
            values.append(b.call(ATEN.bernoulli.default, pick(values)))
        elif kind == "barrier" and draw(st.integers(0, 3)) == 0:
            b.graph.call_function(print, ())
    values += [b.wait(start) for start in starts]
    return b.finish(*values).graph


def closure(view: GraphView) -> dict[Node, set[Node]]:
    """What each node depends on, from all pairs of conflicts: quadratic and plain."""
    found: dict[Node, set[Node]] = {}
    for index, node in enumerate(view.nodes):
        direct = {*node.all_input_nodes}
        direct |= {other for other in view.nodes[:index] if view.hazards.conflict(node, other) is not None}
        found[node] = direct.union(*(found[other] for other in direct))
    return found


@settings(max_examples=60, deadline=None)
@given(tangled())
def test_dependence_is_the_closure_of_edges_and_conflicts(graph: Graph) -> None:
    view = GraphView.of(graph)
    truth = closure(view)
    for a, b in itertools.product(view.nodes, repeat=2):
        assert view.depends(a, b) == (b in truth[a]), f"{a} on {b}"
    for node in view.nodes:
        assert set(view.collectives_before(node)) == {n for n in truth[node] if n in view.starts}
        after = {n for n in view.nodes if node in truth[n]}
        assert set(view.descendants(node)) == after


def has_cycle(needs: dict[Node, set[Node]], groups: Iterable[tuple[Node, ...]]) -> bool:
    of = {start: group for group in groups for start in group}
    edges = {group: {of[n] for start in group for n in needs[start]} for group in set(of.values())}
    while edges:
        free = [group for group, before in edges.items() if not before & edges.keys()]
        if not free:
            return True
        for group in free:
            del edges[group]
    return False


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_merge_is_refused_exactly_when_it_closes_a_cycle(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 9))
    b = GraphBuilder({"dp": range(2)})
    x = b.input("x", (4,))
    starts, waits = [], [x]
    for _ in range(count):
        operand = x
        for index in data.draw(st.sets(st.integers(0, len(waits) - 1), max_size=2)):
            operand = b.call(ATEN.add.Tensor, operand, waits[index])
        start, wait = reduced(b, operand)
        starts.append(start)
        waits.append(wait)
    view = GraphView.of(b.finish(*waits[1:]))
    planner = view.merges()
    needs = {start: set(view.collectives_before(start)) for start in starts}
    for _ in range(data.draw(st.integers(1, 8))):
        chosen = data.draw(st.lists(st.sampled_from(starts), min_size=2, max_size=4))
        before = planner.groups()
        joined = tuple(dict.fromkeys(n for start in chosen for n in planner.group(start)))
        wanted = [*(group for group in before if not set(group) & set(joined)), joined]
        refusal = planner.try_merge(chosen)
        assert (refusal is not None) == has_cycle(needs, wanted)
        if refusal is not None:
            assert refusal.code == "merge-cycle"
            assert planner.groups() == before
    done: set[Node] = set()
    for group in planner.groups():
        assert set().union(*(needs[start] for start in group)) <= done, "groups come in an order in which they can run"
        done |= set(group)
    assert done == set(starts)


def test_two_buckets_must_not_wait_for_each_other(b: GraphBuilder) -> None:
    x, y = b.input("x", (4,)), b.input("y", (4,))
    s_a, w_a = reduced(b, x)
    s_b, w_b = reduced(b, w_a)
    s_c, w_c = reduced(b, y)
    s_d, w_d = reduced(b, w_c)
    planner = GraphView.of(b.finish(w_b, w_d)).merges()
    assert planner.try_merge([s_a, s_d]) is None
    refusal = planner.try_merge([s_b, s_c])
    assert refusal is not None
    assert "through other merged collectives" in refusal.detail
    assert planner.group(s_d) == (s_a, s_d)
    assert planner.try_merge([s_a, s_b]) is not None
