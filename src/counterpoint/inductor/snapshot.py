"""A graph's exact state, kept so that a failed run of the passes leaves no trace."""

from __future__ import annotations

import copy

from torch.fx import Graph, Node
from torch.fx.graph import _Namespace


class GraphSnapshot:
    """A copy of a graph that can be put back into the very graph object it was taken from.

    Putting it into the same object matters: inductor goes on with the graph that it handed to us.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._copy = copy.deepcopy(graph)

    def restore(self) -> None:
        """Make the graph what it was: the same nodes by name, in the same order, with the same metadata."""
        graph = self._graph
        for node in reversed(list(graph.nodes)):
            graph.erase_node(node)
        # Erased names stay taken, and inductor finds inputs by name.
        graph._graph_namespace = _Namespace()
        made: dict[Node, Node] = {}
        for node in self._copy.nodes:
            made[node] = graph.node_copy(node, lambda n: made[n])
