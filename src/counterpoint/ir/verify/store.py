"""What every node holds while a graph is read in order: values, views of other nodes, and writes through views.

A view is worked out from its parent each time it is read, so it sees later writes; a write through a view replaces the
part of the parent that the view shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch.fx import Node

from counterpoint.ir.verify.flat import Flat, columns, replaced
from counterpoint.ir.verify.sizes import Size, UndecidedError


class View(Protocol):
    """How a node shows another one."""

    @property
    def parent(self) -> Node:
        """The node that is shown."""
        ...

    def seen(self, shown: Flat) -> Flat:
        """What the view shows of its parent's elements."""
        ...

    def written(self, shown: Flat, part: Flat) -> Flat:
        """The parent after a write through the view; UndecidedError where that cannot be told."""
        ...


@dataclass(frozen=True)
class Window:
    """A view that shows columns of its parent; without bounds, all of it."""

    parent: Node
    rows: Size = 1
    start: Size = 0
    end: Size = None

    def seen(self, shown: Flat) -> Flat:
        """What the view shows of its parent's elements."""
        return shown if self.end is None else columns(shown, self.rows, self.start, self.end)

    def written(self, shown: Flat, part: Flat) -> Flat:
        """The parent after a write through the view."""
        return part if self.end is None else replaced(shown, self.rows, self.start, self.end, part)


class Store:
    """Values by node."""

    def __init__(self) -> None:
        self._held: dict[Node, Any] = {}
        self._same: dict[Node, Node] = {}
        self._views: dict[Node, View] = {}
        self._seen: dict[Node, tuple[Flat, Flat]] = {}

    def hold(self, node: Node, value: Any) -> None:
        """The node's own value: elements, a tuple of them, or the number of a term."""
        self._held[node] = value

    def is_same(self, node: Node, other: Node) -> None:
        """The node is another name of `other`."""
        self._same[node] = other

    def is_view(self, node: Node, window: View) -> None:
        """The node shows part of another. Raises UndecidedError at once when that part cannot be told."""
        self._views[node] = window
        try:
            self.value(node)
        except UndecidedError:
            del self._views[node]
            raise

    def root(self, node: Node) -> Node:
        """The node whose memory the node shows."""
        node = self.owner(node)
        while node in self._views:
            node = self.owner(self._views[node].parent)
        return node

    def owner(self, node: Node) -> Node:
        """The node that the others are names of."""
        while node in self._same:
            node = self._same[node]
        return node

    def value(self, node: Node) -> Any:
        """What the node holds now."""
        node = self.owner(node)
        window = self._views.get(node)
        if window is None:
            return self._held[node]
        whole = self.value(window.parent)
        known = self._seen.get(node)
        if known is None or known[0] is not whole:
            known = self._seen[node] = (whole, window.seen(whole))
        return known[1]

    def write(self, node: Node, value: Flat) -> None:
        """Replace what the node holds, and with it what every node that shares its memory shows."""
        node = self.owner(node)
        window = self._views.get(node)
        if window is None:
            self._held[node] = value
        else:
            self.write(window.parent, window.written(self.value(window.parent), value))
