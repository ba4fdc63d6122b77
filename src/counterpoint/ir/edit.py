"""The one way to change a graph: `GraphEditor`. One rewrite is one transaction, and stands whole or not at all.

with editor.transaction("fuse two all-reduces") as tx:
    both = tx.call(aten.cat.default, ([a, b],), before=start, like=start)
    ...
    tx.replace({old: new})
    tx.erase(old)

At the end of the block the changes are checked: operands before uses, conflicting accesses in their old order, and
the check that the editor was given. If one fails, or the block raises, the graph is as it was: nodes, order, names,
arguments, order of users, metadata, and the names that later nodes will get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import Graph, GraphModule

from counterpoint._torch import FakeTensorMode
from counterpoint.ir import ops
from counterpoint.ir.alias import Hazards
from counterpoint.ir.events import Edit, EditCounts, EditKind, EditRejected
from counterpoint.ir.fake import fake_mode_of
from counterpoint.ir.handover import erased_reads, refuse_handover
from counterpoint.ir.legality import Changes, refuse_hazards, refuse_order
from counterpoint.ir.reason import Refusal
from counterpoint.ir.revision import Snapshot
from counterpoint.ir.transaction import Transaction
from counterpoint.ir.view import GraphView

__all__ = ["Changes", "Check", "Edit", "EditCounts", "EditKind", "EditRejected", "GraphEditor", "Transaction"]

Check = Callable[[Changes], Refusal | None]
"""Looks at what a transaction did; a refusal or an exception takes it back."""


class GraphEditor:
    """Edits one graph, and keeps between transactions what makes their checks cheap.

    `groups` gives the ranks of groups to operators whose result's shape depends on them. After the last transaction
    the owner of a graph module calls `recompile()`.
    """

    def __init__(
        self,
        graph: Graph | GraphModule,
        groups: Mapping[str, Any] | None = None,
        *,
        check: Check | None = None,
        listeners: Sequence[Callable[[Edit], object]] = (),
    ) -> None:
        self.graph = graph.graph if isinstance(graph, GraphModule) else graph
        self.groups = groups or {}
        self.counts = EditCounts()
        """All edits that were committed."""
        self.check = check
        self.listeners = list(listeners)
        """Told of every edit, in order, once its transaction is committed."""
        self._fake_mode: FakeTensorMode | None = None
        self._hazards: Hazards | None = None
        self._had_hazards = False
        self._judged: Changes | None = None
        self._not_taken_in: Changes | None = None
        """Changes of the last transaction that the hazards have yet to learn of: most passes make only one."""
        self._snapshot = Snapshot(self.graph)

    def transaction(self, why: str) -> Transaction:
        """A rewrite; `why` names it in errors. Use it as a context manager."""
        return Transaction(self, why)

    def attempt(self, why: str, rewrite: Callable[[Transaction], object]) -> Refusal | None:
        """Run a rewrite in a transaction. Returns why it was taken back, or None when it stands."""
        try:
            with self.transaction(why) as tx:
                rewrite(tx)
        except EditRejected as rejected:
            return rejected.refusal
        return None

    @property
    def fake_mode(self) -> FakeTensorMode:
        """The fake mode in which new values are computed: the graph's own."""
        if self._fake_mode is None:
            self._fake_mode = fake_mode_of(self.graph)
        return self._fake_mode

    def hazards(self) -> Hazards:
        """Who touches which buffer; read from the graph when first needed, or after somebody else has edited it."""
        if self._hazards is None:
            self._hazards = Hazards.of(self.graph)
        elif self._not_taken_in is not None:
            _take_in(self._not_taken_in, self._hazards)
        self._not_taken_in = None
        return self._hazards

    def view(self) -> GraphView:
        """A view of the graph as it is now, which shares with the editor what both must know."""
        if not self._snapshot.is_current():
            self._hazards = None
        return GraphView(self.graph, self.hazards())

    # -- called by `Transaction` --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A transaction has been opened."""
        if not self._snapshot.is_current():
            self._hazards = None
        if self._hazards is not None:
            # What is not taken in yet is read from the graph as it is, which is about to change.
            self.hazards()
        self._had_hazards = self._hazards is not None

    def judge(self, changes: Changes) -> Refusal | None:
        """Whether the changes may stand."""
        refusal = refuse_order(changes)
        if refusal is None and (self._hazards is not None or (changes.erased and changes.made)):
            hazards = self.hazards()
            if changes.moved or erased_reads(changes, hazards):
                hazards.begin()
                _take_in(changes, hazards)
                refusal = refuse_hazards(changes, hazards) or refuse_handover(changes, hazards)
            else:
                self._judged = changes
        if refusal is None and self.check is not None:
            refusal = self.check(changes)
        return refusal

    def committed(self, edits: Sequence[Edit]) -> None:
        """The changes stand."""
        if self._hazards is not None:
            self._hazards.keep()
        self._not_taken_in, self._judged = self._judged, None
        self._snapshot = Snapshot(self.graph)
        self.counts += EditCounts.of(edits)
        for edit in edits:
            for listener in self.listeners:
                listener(edit)

    def taken_back(self) -> None:
        """The graph is as it was."""
        self._judged = None
        if self._hazards is not None and self._had_hazards:
            self._hazards.take_back()
        else:
            # What was read during the transaction was read from a graph that is no more.
            self._hazards = None
        self._snapshot = Snapshot(self.graph)


def _take_in(changes: Changes, hazards: Hazards) -> None:
    for node in changes.erased:
        hazards.discard(node)
    for node in (*changes.made, *changes.changed):
        hazards.add(node)
        if ops.is_collective(node):
            # What an element of the result shares storage with depends on the start's arguments.
            for user in node.users:
                hazards.add(user)
