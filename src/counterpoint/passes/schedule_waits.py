"""The pass that delays every wait to its first use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from counterpoint.ir import effects, ops
from counterpoint.ir.edit import GraphEditor, Transaction
from counterpoint.ir.view import GraphView
from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.contract import Contract


@dataclass(frozen=True, kw_only=True)
class ScheduleWaits(Pass):
    """Delays each wait to just before its first use, so that the network works while the processor does.

    Does: moves a wait, with the views that follow it, down to the first node that uses the result or that must not
    change places with the wait. Waits that nothing uses go to the end.

    Fires when: other work stands between a wait and its first use.

    Before and after:

        g = wait(all_reduce(x)); y = mm(a, b); z = g + y
        s = all_reduce(x); y = mm(a, b); g = wait(s); z = g + y

    Never: moves a start, changes the order of two waits without need, or crosses a barrier or a write to what is sent
    or received.
    """

    name: ClassVar[str] = "schedule-waits"
    contract: ClassVar[Contract] = Contract(provides=frozenset({"delayed-waits"}))

    def run(self, context: PassContext) -> None:
        """Plan, then move group by group."""
        delay_waits(context.editor, context.editor.view())


@dataclass(frozen=True)
class Delay:
    """Waits and views that are first needed by the same node, in graph order."""

    nodes: tuple[Node, ...]
    before: Node

    def carry_out(self, tx: Transaction) -> None:
        """Move them there."""
        tx.move(self.nodes, before=self.before)


def delay_waits(editor: GraphEditor, view: GraphView) -> None:
    """Carry out what `planned_delays` says. A move that the editor refuses leaves that group where it is."""
    for delay in tuple(planned_delays(view)):
        editor.attempt(f"delay waits to {delay.before.name}", delay.carry_out)


def planned_delays(view: GraphView) -> Iterator[Delay]:
    """Which waits can stand later. One walk through the graph; each edge is looked at once."""
    delayed = _Delayed(view)
    passed = 0
    for index, node in enumerate(view.nodes):
        if delayed.takes(node, index, passed):
            continue
        needed = delayed.everything() if node.op == "output" else delayed.needed_by(node)
        nodes = delayed.release(needed, passed)
        if nodes:
            yield Delay(nodes, node)
        passed += 1


class _Delayed:
    """The waits that have been taken up and not been put down yet, each with its views."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self.block_of: dict[Node, Node] = {}
        """The wait to which each delayed node belongs."""
        self.blocks: dict[Node, list[tuple[int, int, Node]]] = {}
        """For each wait its nodes, where they stand, and how much other work stood before them."""

    def takes(self, node: Node, index: int, passed: int) -> bool:
        """Take the node up, if it is a wait or looks at nothing but one delayed wait."""
        if ops.is_wait(node):
            wait = node
        else:
            owners = {self.block_of.get(source) for source in node.all_input_nodes}
            owner = owners.pop() if len(owners) == 1 and effects.is_view_like(node) else None
            if owner is None:
                return False
            wait = owner
        self.block_of[node] = wait
        self.blocks.setdefault(wait, []).append((index, passed, node))
        return True

    def needed_by(self, node: Node) -> list[Node]:
        """The delayed waits that the node must stand after."""
        found: dict[Node, None] = {}
        frontier = [node]
        while frontier:
            for source in self.view.predecessors(frontier.pop()):
                wait = self.block_of.get(source)
                if wait is not None and wait not in found:
                    found[wait] = None
                    frontier += [member for _, _, member in self.blocks[wait]]
        return list(found)

    def everything(self) -> list[Node]:
        """All delayed waits."""
        return list(self.blocks)

    def release(self, waits: list[Node], passed: int) -> tuple[Node, ...]:
        """Put these down; the nodes if they have been carried past other work, in graph order."""
        members = sorted(entry for wait in waits for entry in self.blocks.pop(wait))
        for _, _, node in members:
            del self.block_of[node]
        carried = any(before < passed for _, before, _ in members)
        return tuple(node for _, _, node in members) if carried else ()
