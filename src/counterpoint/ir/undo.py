"""The primitive changes of a graph, each with the exact way back.

Undoing costs as much as was changed, plus the users of the nodes whose use was changed, whose order is restored too.
Two things are not the same afterwards, and fx changes both whenever arguments are assigned: containers inside
arguments are equal but new, and `Graph.find_nodes(sort=False)`, whose order means nothing, may list nodes differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.fx import Graph, Node

from counterpoint._torch import NameLog, bring_back, place_of, usual_name
from counterpoint.errors import EditError
from counterpoint.ir.revision import Revision, current_revision, set_revision

_OPEN = "counterpoint_open_log"


class UndoLog:
    """Changes a graph and remembers the way back. One log is open on a graph at a time."""

    def __init__(self, graph: Graph) -> None:
        if graph.__dict__.get(_OPEN):
            raise EditError(
                "a transaction is already open on this graph",
                next_step="end it first: one rewrite is one transaction, and they do not nest",
            )
        graph.__dict__[_OPEN] = True
        self.graph = graph
        self.made: dict[Node, None] = {}
        self.erased: dict[Node, tuple[Node, ...]] = {}
        """Erased nodes, and what they used."""
        self.changed: dict[Node, None] = {}
        """Nodes whose arguments were set."""
        self.moved: dict[Node, tuple[int, ...]] = {}
        """Where each moved node stood at first."""
        self._back: list[Callable[[], object]] = []
        self._users: dict[Node, tuple[Node, ...]] = {}
        self._names = NameLog(graph)
        self._revision = current_revision(graph)

    def make(
        self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], before: Node, name: str | None
    ) -> Node:
        """A new call."""
        with self.graph.inserting_before(before):
            node = self.graph.create_node("call_function", target, name=name or usual_name(target))
        # Given at once, fx would walk through the arguments twice.
        _assign(node, args, kwargs)
        self.made[node] = None
        self._back.append(lambda: self.graph.erase_node(node))
        self._mark()
        return node

    def set_arguments(self, node: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Other arguments for a node."""
        old_args, old_kwargs = node.args, node.kwargs
        # fx takes the node out of its inputs' users and puts it at their end, so their order is noted first.
        self._note_users(node.all_input_nodes)
        _assign(node, args, kwargs)
        self.changed[node] = None
        self._back.append(lambda: _assign(node, old_args, old_kwargs))
        self._mark()

    def move(self, node: Node, before: Node) -> None:
        """Put the node before another."""
        old_next = node.next
        self.moved.setdefault(node, place_of(node))
        before.prepend(node)
        self._back.append(lambda: old_next.prepend(node))
        self._mark()

    def erase(self, node: Node) -> None:
        """Take out a node without users."""
        old_next, args, kwargs, used = node.next, node.args, node.kwargs, tuple(node.all_input_nodes)
        self.erased[node] = used
        self._note_users(used)
        self.graph.erase_node(node)

        def back() -> None:
            bring_back(node, old_next)
            _assign(node, args, kwargs)

        self._back.append(back)
        self._mark()

    def set_meta(self, node: Node, meta: Mapping[str, Any]) -> None:
        """Replace the metadata of a node."""
        old = dict(node.meta)
        _refill(node.meta, meta)
        self._back.append(lambda: _refill(node.meta, old))
        self._mark()

    def keep(self) -> None:
        """Make the changes permanent."""
        self._names.keep()
        self.graph.__dict__.pop(_OPEN)

    def take_back(self) -> None:
        """Undo everything since the log was opened."""
        for step in reversed(self._back):
            step()
        for node, users in self._users.items():
            # The users are right again but for their order; what was noted may hold some that came before the note.
            _refill(node.users, {user: None for user in (*users, *node.users) if user in node.users})
        self._names.drop(self.made)
        set_revision(self.graph, self._revision)
        self.graph.__dict__.pop(_OPEN)

    def _note_users(self, used: Iterable[Node]) -> None:
        for source in used:
            # A single user has no order; most operands of a large output node have one.
            if len(source.users) > 1 and source not in self._users:
                self._users[source] = tuple(source.users)

    def _mark(self) -> None:
        set_revision(self.graph, Revision())


def _assign(node: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    node.args = args
    # Each assignment makes fx go through all operands, of which an output node may have thousands.
    if kwargs or node.kwargs:
        node.kwargs = dict(kwargs)


def _refill(target: dict[Any, Any], content: Mapping[Any, Any]) -> None:
    """Give a dictionary other content in place: it is known to others by identity."""
    target.clear()
    target.update(content)
