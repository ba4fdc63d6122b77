"""The pass that lets identical collectives be one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch.fx import Node

from counterpoint._torch import size_hint
from counterpoint.ir import ops
from counterpoint.ir.alias import Hazards
from counterpoint.ir.collective import CommBlock, get_comm_block
from counterpoint.ir.edit import Transaction
from counterpoint.ir.ops import Form
from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.options import option
from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.book import origins_of
from counterpoint.passes.contract import Contract

MB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class DedupCollectives(Pass):
    """Lets identical collectives be one.

    Does: a collective that is started with the same operator and the same arguments as an earlier one is taken out,
    and its users read the result of the earlier one.

    Fires when: both are functional and waited for, nothing writes their input between the two starts, and neither
    result is ever written. Where the earlier result would have to be kept for it beyond its last use, only while what
    is kept that way stays under max-held-mb: gathering again is also how a program saves memory.

    Before and after:

        a = all_gather(x); u = matmul(a, v); b = all_gather(x); w = matmul(b, z)
        a = all_gather(x); u = matmul(a, v);                    w = matmul(a, z)

    Never: makes two outputs of the graph one tensor, moves a collective, or takes one out that another rank still
    starts: ranks run the same graph, so all of them take out the same.
    """

    name: ClassVar[str] = "dedup-collectives"
    contract: ClassVar[Contract] = Contract()

    max_held_mb: float | None = option(
        25.0, help="most memory that is kept over gaps between uses, all gaps together", unit="MB", minimum=0.0
    )

    def run(self, context: PassContext) -> None:
        """Find all, then take them out in one transaction."""
        view = context.editor.view()
        search = _Search(view, None if self.max_held_mb is None else int(self.max_held_mb * MB))
        for start in view.starts:
            block = get_comm_block(start)
            if isinstance(block, CommBlock) and block.collective.spec.form is Form.FUNCTIONAL:
                search.look_at(block)
        for again, why in search.refused:
            context.ledger.left_alone(again, why)
        if not search.found:
            return
        said = [(origins_of(again.collective.start), first.collective.start.name) for again, first in search.found]
        refusal = context.editor.attempt("take out identical collectives", lambda tx: _take_out(tx, search.found))
        for origins, first in said:
            if refusal is None:
                context.ledger.deduplicated(origins, first)
            else:
                context.ledger.left_alone(origins, refusal)


def _take_out(tx: Transaction, found: Iterable[tuple[CommBlock, CommBlock]]) -> None:
    mapping: dict[Node, Node] = {}
    gone: list[Node] = []
    for again, first in found:
        mapping |= zip(again.waits, first.waits, strict=True)
        own = again.collective
        gone += [*again.waits, *(result.value for result in own.results), own.start]
    tx.replace(mapping)
    tx.erase(gone)
    # A wait of the first may stand behind a user of the second's.
    tx.settle()


@dataclass
class _Search:
    """Collectives seen so far, and which of them repeat one."""

    view: GraphView
    limit_bytes: int | None
    found: list[tuple[CommBlock, CommBlock]] = field(default_factory=list)
    """What repeats, and what it repeats."""
    refused: list[tuple[Node, Refusal]] = field(default_factory=list)
    held_bytes: int = 0
    _first: dict[Hashable, CommBlock] = field(default_factory=dict)
    _last_use: dict[Node, int] = field(default_factory=dict)

    def look_at(self, block: CommBlock) -> None:
        """Take down the next collective of the graph."""
        start = block.collective.start
        what = (start.target, self._versions(block), *_arguments(start))
        first = self._first.setdefault(what, block)
        if first is block:
            self._last_use[start] = self._use(block, max)
            return
        refusal = self._refuse(first, block)
        if refusal is not None:
            # The next one like it may have more luck with this one.
            self._first[what] = block
            self._last_use[start] = self._use(block, max)
            self.refused.append((start, refusal))
            return
        self.found.append((block, first))
        origin = first.collective.start
        self._last_use[origin] = max(self._last_use[origin], self._use(block, max))

    def _versions(self, block: CommBlock) -> tuple[int, ...]:
        """How often each input has been written before the start: equal inputs of equal version hold equal values."""
        hazards, own = self.view.hazards, set(block.nodes)
        return tuple(
            sum(writer < block.collective.start for writer in hazards.writers(value) if writer not in own)
            for value in block.inputs
        )

    def _refuse(self, first: CommBlock, again: CommBlock) -> Refusal | None:
        for one, other in zip(first.waits, again.waits, strict=True):
            if kept := _why_kept(self.view.hazards, one, other):
                return Refusal("several-results-kept", again.collective.start.name, kept)
        start = again.collective.start
        gap = self._use(again, min) > self._last_use[first.collective.start] < self.view.index(start)
        if not gap or self.limit_bytes is None:
            return None
        nbytes = size_hint(again.collective.received.nbytes)
        if nbytes is None or self.held_bytes + nbytes > self.limit_bytes:
            return Refusal("held-too-long", start.name, f"{nbytes} bytes more, the bound is {self.limit_bytes}")
        self.held_bytes += nbytes
        return None

    def _use(self, block: CommBlock, pick: Any) -> int:
        users = {user for node in block.outputs for user in node.users}
        found: int = pick((self.view.index(user) for user in users), default=self.view.index(block.waits[-1]))
        return found


def _why_kept(hazards: Hazards, one: Node, other: Node) -> str:
    """Why the two results cannot be one tensor; empty when they can."""
    leaving = []
    for wait in (one, other):
        own = {wait, *wait.all_input_nodes, *(n for v in wait.all_input_nodes for n in v.all_input_nodes)}
        written = [writer.name for writer in hazards.writers(wait) if writer not in own]
        if written:
            return f"{written[0]} writes into {wait.name}"
        leaving += [m for m in hazards.storage.members(hazards.storage.find(wait)) if _leaves(m)][:1]
    return f"{leaving[0].name} and {leaving[1].name} leave the graph" if len(leaving) == 2 else ""


def _leaves(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _arguments(start: Node) -> tuple[Hashable, ...]:
    """All arguments by the names of the schema, however the call is written."""
    spec = ops.spec_of(start.target)
    names = () if spec is None else (*spec.payload, *ops.arguments_after_payload(spec))
    return tuple(_plain(ops.argument(start, name)) for name in names)


def _plain(value: Any) -> Hashable:
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    # Symbolic sizes and objects compare by what they say.
    return value if isinstance(value, (Node, str, int)) else repr(value)
