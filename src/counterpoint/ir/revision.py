"""Which state of a graph something was read from, so that it can tell when it has gone stale.

The mark sits on the graph itself: every editor and every view of a graph sees the same one.
"""

from __future__ import annotations

from torch.fx import Graph

from counterpoint._torch import graph_size

_ATTRIBUTE = "counterpoint_revision"


class Revision:
    """One state of one graph; compared by identity."""


def current_revision(graph: Graph) -> Revision:
    """The mark of the graph's present state."""
    found = graph.__dict__.get(_ATTRIBUTE)
    return found if isinstance(found, Revision) else set_revision(graph, Revision())


def set_revision(graph: Graph, revision: Revision) -> Revision:
    """Mark the graph: with a new revision after a change, with an old one after that change was taken back."""
    graph.__dict__[_ATTRIBUTE] = revision
    return revision


class Snapshot:
    """Remembers a state of a graph and tells, at the cost of two comparisons, whether it has surely been left.

    An editor's changes are always seen. Of changes made by hand, making and erasing nodes are seen here; moves and
    changed arguments are not.
    """

    __slots__ = ("_graph", "_revision", "_size")

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._revision = current_revision(graph)
        self._size = graph_size(graph)

    def is_current(self) -> bool:
        """Whether the graph still looks as it did."""
        graph = self._graph
        return graph.__dict__.get(_ATTRIBUTE) is self._revision and graph_size(graph) == self._size
