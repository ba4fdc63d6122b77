"""Graphs that inductor's passes have left out of order."""

from __future__ import annotations

from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Graph, Node

from counterpoint.ir.edit import GraphEditor
from counterpoint.ir.view import GraphView


def put_in_order(graph: Graph) -> None:
    """Let every operand stand before its use; nothing is touched where it does already."""
    seen: set[Node] = set()
    for node in graph.nodes:
        if not seen.issuperset(node.all_input_nodes):
            stable_topological_sort(graph)
            return
        seen.add(node)


def ordered_view(editor: GraphEditor) -> GraphView:
    """A view of the editor's graph, which is put in order first."""
    put_in_order(editor.graph)
    return editor.view()
