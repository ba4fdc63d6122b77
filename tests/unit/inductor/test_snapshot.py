"""A snapshot puts a graph back to the letter, into the very graph object that was changed."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from counterpoint.inductor.snapshot import GraphSnapshot
from counterpoint.ir.build import GraphBuilder


def small_graph() -> GraphModule:
    builder = GraphBuilder()
    x = builder.input("x", (4, 4))
    y = builder.call(torch.ops.aten.mm.default, x, x)
    return builder.finish(builder.all_reduce(y), y)


def state(gm: GraphModule) -> list[tuple[object, ...]]:
    return [(n.name, n.op, n.target, str(n.args), str(n.kwargs), sorted(n.meta)) for n in gm.graph.nodes]


def test_an_edited_graph_comes_back_to_the_letter() -> None:
    gm = small_graph()
    graph, before = gm.graph, state(gm)
    snapshot = GraphSnapshot(graph)
    mm = next(n for n in graph.nodes if n.target is torch.ops.aten.mm.default)
    with graph.inserting_after(mm):
        mm.replace_all_uses_with(
            graph.call_function(torch.ops.aten.neg.default, (mm,)), lambda user: user.op == "output"
        )
    mm.meta["note"] = 1
    assert state(gm) != before
    snapshot.restore()
    assert gm.graph is graph
    assert state(gm) == before
    graph.lint()


def test_an_emptied_graph_comes_back() -> None:
    gm = small_graph()
    before = state(gm)
    snapshot = GraphSnapshot(gm.graph)
    for node in reversed(list(gm.graph.nodes)):
        gm.graph.erase_node(node)
    snapshot.restore()
    assert state(gm) == before


def test_metadata_of_restored_nodes_is_what_it_was() -> None:
    gm = small_graph()
    shapes = [n.meta["val"].shape for n in gm.graph.nodes if n.op != "output"]
    snapshot = GraphSnapshot(gm.graph)
    for node in gm.graph.nodes:
        node.meta.clear()
    snapshot.restore()
    assert [n.meta["val"].shape for n in gm.graph.nodes if n.op != "output"] == shapes
