"""Manual bucketing, as people write it by hand: one bucket a layer, gathered one layer ahead, scattered one behind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from counterpoint.ir import ops
from counterpoint.ir.alias import waits_of
from counterpoint.ir.edit import GraphEditor, Transaction
from counterpoint.ir.ops import Kind
from counterpoint.ir.view import GraphView
from counterpoint.options import option
from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.book import origins_of
from counterpoint.passes.bucket_merge import BucketMode, merge
from counterpoint.passes.bucket_plan import Bucket, Key, Member, kind_of, read_member, starts_of
from counterpoint.passes.contract import Contract
from counterpoint.passes.registry import register
from counterpoint.passes.schedule_waits import delay_waits

KINDS = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)


@register
@dataclass(frozen=True, kw_only=True)
class BenchPerLayer(Pass):
    """One bucket a layer, one layer ahead.

    Does: merges as many neighbours as a layer has parameters; starts each gather when the layer before begins, and goes
    on with a reduced bucket when the next one starts.

    Fires when: there are as many collectives of one kind and group.

    Before and after:

        a = wait(all_gather(x)); b = wait(all_gather(y))
        a, b = wait(all_gather([x, y]))

    Never: asks what anything takes.
    """

    name: ClassVar[str] = "bench-per-layer"
    contract: ClassVar[Contract] = Contract(
        provides=frozenset(
            {"overlap-schedule", "delayed-waits", "bucketed-all-gather", "bucketed-reduce-scatter"}
            | {"bucketed-all-reduce"}
        )
    )
    parameters: int = option(9, help="parameters of a layer", minimum=1)

    def run(self, context: PassContext) -> None:
        """Merge, then move."""
        buckets = list(_buckets(context.editor.view(), self.parameters))
        refusals = merge(context.editor, buckets, BucketMode.CUSTOM)
        for bucket, refusal in zip(buckets, refusals, strict=True):
            origins = [origin for start in starts_of(bucket.members) for origin in origins_of(start)]
            if refusal is None:
                context.ledger.bucketed(origins, f"layer of {len(bucket.members)}")
        delay_waits(context.editor, context.editor.view())
        _gather_ahead(context.editor)
        _go_on_behind(context.editor)


def _buckets(view: GraphView, parameters: int) -> Iterator[Bucket]:
    by_key: dict[Key, list[Member]] = {}
    for start in view.starts:
        member = read_member(start, multi_dtype=False) if kind_of(start) in KINDS else None
        if isinstance(member, Member):
            by_key.setdefault(member.key, []).append(member)
    planner = view.merges()
    for key, members in by_key.items():
        if key.kind is Kind.ALL_GATHER:
            members.sort(key=lambda member: _first_use(view, member.wait))
        for first in range(0, len(members), parameters):
            chunk = members[first : first + parameters]
            if len(chunk) > 1 and planner.try_merge(starts_of(chunk)) is None:
                yield Bucket(key, tuple(sorted(chunk, key=lambda member: member.start)))


def _first_use(view: GraphView, wait: Node) -> int:
    first = view.first_user(wait)
    return view.index(first if first is not None else wait)


def _gather_ahead(editor: GraphEditor) -> None:
    """Each gather starts where the one before is waited for."""
    view = editor.view()
    gathers = [start for start in view.starts if kind_of(start) is Kind.ALL_GATHER and len(origins_of(start)) > 1]
    gathers.sort(key=lambda start: view.index(next(waits_of(start))))
    for before, start in itertools.pairwise(gathers):
        wait = next(waits_of(before))
        nodes = _needed(editor.view(), start, wait)
        if nodes and start > wait:
            editor.attempt("gather ahead", _move(nodes, wait))


def _go_on_behind(editor: GraphEditor) -> None:
    """What needs a reduced bucket to go on communicating does so when the next bucket starts."""
    view = editor.view()
    scatters = [start for start in view.starts if kind_of(start) is Kind.REDUCE_SCATTER]
    for start, following in itertools.pairwise(scatters):
        nodes = _after(editor.view(), next(waits_of(start)))
        if any(ops.is_collective(node) for node in nodes) and all(node < following for node in nodes):
            editor.attempt("go on behind", _move(nodes, following))


def _move(nodes: Sequence[Node], before: Node) -> Callable[[Transaction], None]:
    def carry_out(tx: Transaction) -> None:
        tx.move(tuple(nodes), before=before)

    return carry_out


def _needed(view: GraphView, node: Node, behind: Node) -> list[Node]:
    """The node and what it needs of what stands behind another one, in graph order."""
    found, pending = {node}, [node]
    while pending:
        for source in view.predecessors(pending.pop()):
            if source > behind and source not in found:
                found.add(source)
                pending.append(source)
    return sorted(found)


def _after(view: GraphView, wait: Node) -> list[Node]:
    """The wait and what follows from it, up to the collectives that it feeds, in graph order."""
    found, pending = {wait}, [wait]
    while pending:
        node = pending.pop()
        for user in () if ops.is_collective(node) else node.users:
            if user.op != "output" and user not in found:
                found.add(user)
                pending.append(user)
    return sorted(found)
