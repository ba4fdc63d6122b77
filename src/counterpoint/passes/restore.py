"""Taking a whole pass back: what a graph was, to be put into the very graph object that it was taken from."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from counterpoint._torch import forget_names
from counterpoint.ir.revision import Revision, set_revision


class _Saved(NamedTuple):
    """One node as it was. Arguments are immutable, so they need no copy."""

    node: Node
    made: tuple[str, str, Any, Any, Any, Any]
    """Operation, name, target, arguments, keyword arguments, annotated type."""
    meta: dict[str, Any]


class SavedGraph:
    """A graph module's nodes and attributes at one moment.

    Restoring keeps the graph object, since whoever handed it in goes on with it, but makes new nodes in it. Saving,
    which every pass pays for, makes none.
    """

    def __init__(self, gm: GraphModule) -> None:
        self._gm = gm
        self._nodes = [_saved(node) for node in gm.graph.nodes]
        self._attributes = _attributes(gm)

    @property
    def graph(self) -> Graph:
        """A copy of the saved graph, to be read only: what a fault report shows."""
        graph = Graph()
        self._write(graph)
        return graph

    def restore(self) -> None:
        """Make the module what it was: nodes by name, order, arguments and metadata, and what they refer to."""
        graph = self._gm.graph
        for node in reversed(list(graph.nodes)):
            # Users of a broken graph may stand before what they use, so erasing in reverse order is not enough.
            node.args, node.kwargs = (), {}
        for node in list(graph.nodes):
            graph.erase_node(node)
        forget_names(graph)
        self._write(graph)
        set_revision(graph, Revision())
        self._restore_attributes()

    def _write(self, graph: Graph) -> None:
        made: dict[Node, Node] = {}
        for saved in self._nodes:
            op, name, target, args, kwargs, annotated = saved.made
            new_args, new_kwargs = map_arg((args, kwargs), made.__getitem__)
            node = graph.create_node(op, target, tuple(new_args), new_kwargs, name, annotated)
            node.meta = dict(saved.meta)
            made[saved.node] = node

    def _restore_attributes(self) -> None:
        present = _attributes(self._gm)
        for name in present.keys() - self._attributes.keys():
            delattr(self._gm, name)
        for name, value in self._attributes.items():
            if present.get(name) is not value:
                setattr(self._gm, name, value)


def _saved(node: Node) -> _Saved:
    made = node.op, node.name, node.target, node.args, node.kwargs, node.type
    return _Saved(node, made, dict(node.meta))


def _attributes(gm: GraphModule) -> dict[str, Any]:
    named = (gm.named_parameters(recurse=False), gm.named_buffers(recurse=False), gm.named_children())
    return {name: value for group in named for name, value in group}
