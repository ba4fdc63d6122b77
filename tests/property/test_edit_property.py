"""Any sequence of edits that fails at its end leaves no trace, and any moves are refused or leave a graph that runs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from counterpoint.errors import EditError
from counterpoint.ir.alias import Hazards
from counterpoint.ir.edit import GraphEditor, Transaction
from counterpoint.ir.view import GraphView
from tests.support.graph_picture import picture
from tests.support.strategies import distributed_graphs

ATEN = torch.ops.aten
UNARY = (ATEN.clone.default, ATEN.alias.default, ATEN.neg.default)


class Editing:
    """Draws edits one by one; those that make no sense at their place do nothing."""

    def __init__(self, data: st.DataObject, gm: GraphModule, tx: Transaction) -> None:
        self.data, self.graph, self.tx = data, gm.graph, tx

    def pick(self, accept: Callable[[Node], Any]) -> Node | None:
        fitting = [node for node in self.graph.nodes if accept(node)]
        return fitting[self.data.draw(st.integers(0, len(fitting) - 1))] if fitting else None

    def step(self) -> None:
        kinds = (self.insert, self.erase, self.move, self.replace, self.arguments, self.annotate, self.settle)
        # A step that is refused at once has changed nothing.
        with contextlib.suppress(EditError):
            self.data.draw(st.sampled_from(kinds))()

    def insert(self) -> None:
        source = self.pick(lambda n: isinstance(n.meta.get("val"), torch.Tensor))
        anchor = self.pick(lambda n: n.op != "placeholder")
        if source is not None and anchor is not None:
            self.tx.call(self.data.draw(st.sampled_from(UNARY)), (source,), before=anchor, like=source)

    def erase(self) -> None:
        if node := self.pick(lambda n: not n.users and n.op == "call_function"):
            self.tx.erase(node)

    def move(self) -> None:
        nodes = [node for node in (self.pick(is_call) for _ in range(2)) if node is not None]
        anchor = self.pick(lambda n: n.op != "placeholder" and n not in nodes)
        if nodes and anchor is not None:
            self.tx.move(nodes, before=anchor)

    def replace(self) -> None:
        old, new = self.pick(lambda n: n.op != "output"), self.pick(lambda n: n.op != "output")
        if old is not None and new is not None and old is not new:
            self.tx.replace({old: new})

    def arguments(self) -> None:
        node, new = self.pick(lambda n: n.all_input_nodes), self.pick(lambda n: n.op != "output")
        if node is not None and new is not None:
            self.tx.replace_input(node, node.all_input_nodes[0], new)

    def annotate(self) -> None:
        if node := self.pick(lambda n: True):
            self.tx.annotate(node, note=1)

    def settle(self) -> None:
        self.tx.settle()


def is_call(node: Node) -> bool:
    return node.op == "call_function"


class Planned(Exception):
    """The failure at the end."""


@settings(max_examples=60, deadline=None)
@given(st.data(), distributed_graphs(in_place=True))
def test_edits_that_fail_at_their_end_leave_no_trace(data: st.DataObject, case: Any) -> None:
    editor = GraphEditor(case.gm, case.groups)
    if data.draw(st.booleans(), label="hazards known before"):
        editor.hazards()
    before, text = picture(case.gm.graph), hazard_picture(editor)
    view = GraphView.of(case.gm)

    def rewrite(tx: Transaction) -> None:
        editing = Editing(data, case.gm, tx)
        for _ in range(data.draw(st.integers(1, 12))):
            editing.step()
        raise Planned

    with contextlib.suppress(Planned):
        editor.attempt("fails", rewrite)
    assert picture(case.gm.graph) == before
    assert hazard_picture(editor) == text
    view.check_all()


def hazard_picture(editor: GraphEditor) -> list[Any]:
    hazards = editor.hazards()
    return [hazards.accesses(node) for node in editor.graph.nodes]


@settings(max_examples=60, deadline=None)
@given(st.data(), distributed_graphs(in_place=True))
def test_moves_are_refused_or_keep_every_edge_and_conflict(data: st.DataObject, case: Any) -> None:
    graph = case.gm.graph
    old = list(graph.nodes)
    conflicts = conflicting_pairs(old, Hazards.of(graph))
    editor = GraphEditor(case.gm, case.groups)

    def rewrite(tx: Transaction) -> None:
        editing = Editing(data, case.gm, tx)
        for _ in range(data.draw(st.integers(1, 4))):
            editing.move()
        if data.draw(st.booleans(), label="settle"):
            tx.settle()

    before = picture(graph)
    refusal = editor.attempt("moves", rewrite)
    if refusal is not None:
        assert picture(graph) == before
    graph.lint()
    assert all(a < b for a, b in conflicts)
    assert set(graph.nodes) == set(old)


def conflicting_pairs(nodes: list[Node], hazards: Hazards) -> list[tuple[Node, Node]]:
    return [(a, b) for a, b in itertools.combinations(nodes, 2) if hazards.conflict(a, b) is not None]


@settings(max_examples=60, deadline=None)
@given(st.data(), distributed_graphs(in_place=True))
def test_only_moves_that_break_something_are_refused(data: st.DataObject, case: Any) -> None:
    """The other direction: one move, and a refusal exactly when an edge or a conflict is turned around."""
    graph = case.gm.graph
    nodes = list(graph.nodes)
    calls = [node for node in nodes if is_call(node)]
    if len(calls) < 2:
        return
    ordered = conflicting_pairs(nodes, Hazards.of(graph))
    ordered += [(source, node) for node in nodes for source in node.all_input_nodes]
    moved, anchor = data.draw(st.permutations(calls))[:2]
    wanted = [node for node in nodes if node is not moved]
    wanted.insert(wanted.index(anchor), moved)
    place = {node: index for index, node in enumerate(wanted)}
    breaks = any(place[a] > place[b] for a, b in ordered)
    refusal = GraphEditor(case.gm, case.groups).attempt("one move", lambda tx: tx.move(moved, before=anchor))
    assert (refusal is not None) == breaks
    assert list(graph.nodes) == (nodes if breaks else wanted)
