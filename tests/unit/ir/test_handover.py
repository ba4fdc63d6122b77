"""A new node that reads in the place of erased ones keeps their order with every write, or the rewrite is refused."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.edit import GraphEditor
from counterpoint.ir.reason import Refusal
from counterpoint.ir.transaction import Transaction

ATEN = torch.ops.aten


def graph_with_writes(*, rewritten_twice: bool = False) -> tuple[Graph, dict[str, Node]]:
    """Two reads of two buffers; the first buffer is overwritten between them."""
    builder = GraphBuilder()
    x = builder.input("x", (4,))
    own = builder.call(ATEN.clone.default, x)
    first = builder.call(ATEN.neg.default, own)
    write = builder.call(ATEN.add_.Tensor, own, 1)
    second = builder.call(ATEN.neg.default, own if rewritten_twice else builder.call(ATEN.abs.default, x))
    graph = builder.finish(first, second, write).graph
    return graph, {"own": own, "first": first, "write": write, "second": second}


def join(tx: Transaction, nodes: dict[str, Node], before: Node, settle: bool = True, view: bool = True) -> Node:
    """One negation of both operands side by side, in the place of two."""
    olds = [nodes["first"], nodes["second"]]
    values = [old.all_input_nodes[0] for old in olds]
    seen = [tx.call(ATEN.view.default, (value, [-1]), before=before) for value in values] if view else values
    packed = tx.call(ATEN.cat.default, (seen,), before=before)
    parts = [tx.call(ATEN.slice.Tensor, (packed, 0, 4 * i, 4 * i + 4), before=before) for i in range(2)]
    results = [tx.call(ATEN.neg.default, (part,), before=before) for part in parts]
    tx.replace(dict(zip(olds, results, strict=True)))
    tx.erase(olds)
    if settle:
        tx.settle()
    return packed


def test_a_write_after_the_erased_reader_is_moved_behind_the_new_one() -> None:
    for place in ("first", "second"):
        graph, nodes = graph_with_writes()
        with GraphEditor(graph).transaction("join") as tx:
            packed = join(tx, nodes, nodes[place])
        assert packed < nodes["write"]
        graph.lint()


def test_without_settling_the_wrong_side_is_refused() -> None:
    for view in (True, False):
        graph, nodes = graph_with_writes()
        before = str(graph)
        refusal = GraphEditor(graph).attempt(
            "join", lambda tx, n=nodes, v=view: join(tx, n, n["second"], settle=False, view=v)
        )
        assert isinstance(refusal, Refusal)
        assert refusal.code == "hazard-order"
        assert str(graph) == before


def test_a_write_between_two_erased_readers_of_one_buffer_is_refused() -> None:
    graph, nodes = graph_with_writes(rewritten_twice=True)
    refusal = GraphEditor(graph).attempt("join", lambda tx: join(tx, nodes, nodes["second"]))
    assert refusal is not None
    assert refusal.code in ("hazard-order", "use-before-made")


def test_a_reader_that_replaces_nothing_stands_where_it_is_put() -> None:
    graph, nodes = graph_with_writes()
    with GraphEditor(graph).transaction("read") as tx:
        made = tx.call(ATEN.neg.default, (nodes["own"],), after=nodes["write"])
    assert nodes["write"] < made
