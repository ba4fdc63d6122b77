"""Taking a whole pass back: a copy of the graph that can be put into the very graph object it was taken from."""

from __future__ import annotations

import copy
from typing import Any

from torch.fx import Graph, GraphModule, Node

from counterpoint._torch import forget_names
from counterpoint.ir.revision import Revision, set_revision


class SavedGraph:
    """A graph module's nodes and attributes at one moment.

    Restoring keeps the graph object, since whoever handed it in goes on with it, but makes new nodes in it.
    """

    def __init__(self, gm: GraphModule) -> None:
        self._gm = gm
        self._nodes = copy.deepcopy(gm.graph)
        self._attributes = _attributes(gm)

    @property
    def graph(self) -> Graph:
        """The saved copy, to be read only: what a fault report shows."""
        return self._nodes

    def restore(self) -> None:
        """Make the module what it was: nodes by name, order, arguments and metadata, and what they refer to."""
        graph = self._gm.graph
        for node in reversed(list(graph.nodes)):
            # Users of a broken graph may stand before what they use, so erasing in reverse order is not enough.
            node.args, node.kwargs = (), {}
        for node in list(graph.nodes):
            graph.erase_node(node)
        forget_names(graph)
        made: dict[Node, Node] = {}
        for node in self._nodes.nodes:
            made[node] = graph.node_copy(node, lambda old: made[old])
        set_revision(graph, Revision())
        self._restore_attributes()

    def _restore_attributes(self) -> None:
        present = _attributes(self._gm)
        for name in present.keys() - self._attributes.keys():
            delattr(self._gm, name)
        for name, value in self._attributes.items():
            if present.get(name) is not value:
                setattr(self._gm, name, value)


def _attributes(gm: GraphModule) -> dict[str, Any]:
    named = (gm.named_parameters(recurse=False), gm.named_buffers(recurse=False), gm.named_children())
    return {name: value for group in named for name, value in group}
