"""Passes that only tests use: right ones, and one for each way of being wrong. `REGISTRY` knows them and ours."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from counterpoint.ir import ops
from counterpoint.ir.build import collectives_in
from counterpoint.ir.transaction import Transaction
from counterpoint.options import option
from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.book import carrying, origins_of
from counterpoint.passes.contract import Contract
from counterpoint.passes.registry import Registry

REGISTRY = Registry()
_WAIT = torch.ops._c10d_functional.wait_tensor.default


def all_reduces(context: PassContext) -> list[Node]:
    """The plain, functional all-reduces."""
    spec = ops.TABLE["_c10d_functional::all_reduce"]
    return [node for node in collectives_in(context.graph) if ops.spec_of(node.target) is spec]


def wait_of(start: Node) -> Node:
    return next(user for user in start.users if ops.is_wait(user))


@REGISTRY.register
@dataclass(frozen=True, kw_only=True)
class MergeAllReduces(Pass):
    """Merges neighbouring all-reduces of one group and op into one coalesced operator, as many as fit the cap.

    Merges only what nothing stands between, so it needs no view of the graph: enough for the tests of the pipeline.
    """

    name: ClassVar[str] = "merge-all-reduces"
    contract: ClassVar[Contract] = Contract(provides=frozenset({"buckets"}))

    cap: int = option(100, help="most members of a bucket", minimum=2)

    def run(self, context: PassContext) -> None:
        for number, bucket in enumerate(self._buckets(context)):
            why = f"{self.name} {number}"
            refusal = context.editor.attempt(why, lambda tx, members=bucket: _merge(tx, members))
            origins = [origin for start in bucket for origin in origins_of(start)]
            if refusal is None:
                context.ledger.bucketed(origins, into=f"bucket {number}")
            else:
                context.ledger.left_alone(origins, refusal)

    def _buckets(self, context: PassContext) -> list[list[Node]]:
        by_key: dict[tuple[str, str], list[Node]] = {}
        for start in all_reduces(context):
            key = ops.argument(start, "group_name"), ops.argument(start, "reduce_op")
            by_key.setdefault(key, []).append(start)
        buckets = [m[i : i + self.cap] for m in by_key.values() for i in range(0, len(m), self.cap)]
        return [bucket for bucket in buckets if len(bucket) > 1]


def _merge(tx: Transaction, starts: list[Node]) -> None:
    first, last = starts[0], starts[-1]
    inputs = [ops.argument(start, "input") for start in starts]
    merged = tx.call(
        torch.ops._c10d_functional.all_reduce_coalesced.default,
        (inputs, ops.argument(first, "reduce_op"), ops.argument(first, "group_name")),
        before=last,
        like=starts,
        meta=carrying(*starts),
    )
    waits = [wait_of(start) for start in starts]
    for index, wait in enumerate(waits):
        part = tx.call(operator.getitem, (merged, index), before=last)
        tx.replace({wait: tx.call(_WAIT, (part,), before=last, like=wait)})
    tx.erase([*starts, *waits])


@REGISTRY.register
@dataclass(frozen=True, kw_only=True)
class ShareDuplicates(Pass):
    """Lets all-reduces of the same input, group and op share one result."""

    name: ClassVar[str] = "share-duplicates"

    def run(self, context: PassContext) -> None:
        first_of: dict[object, Node] = {}
        for start in all_reduces(context):
            first = first_of.setdefault((start.target, *start.args), start)
            if first is start:
                continue
            with context.editor.transaction(self.name) as tx:
                tx.replace({wait_of(start): wait_of(first)})
                tx.erase([start, wait_of(start)])
            context.ledger.deduplicated(origins_of(start), into=first.name)


@REGISTRY.register
@dataclass(frozen=True, kw_only=True)
class CrashHalfway(Pass):
    """Changes the graph, speaks, and raises."""

    name: ClassVar[str] = "crash-halfway"
    contract: ClassVar[Contract] = Contract(provides=frozenset({"order"}))

    def run(self, context: PassContext) -> None:
        start = all_reduces(context)[0]
        context.ledger.hidden(start, behind="nothing")
        wait = wait_of(start)
        wait.replace_all_uses_with(start.all_input_nodes[0])
        context.graph.erase_node(wait)
        context.gm.register_buffer("left_behind", torch.zeros(1))
        raise ZeroDivisionError("halfway")


@REGISTRY.register
@dataclass(frozen=True, kw_only=True)
class DropCollective(Pass):
    """Erases the first all-reduce, in silence or with a verdict that is a lie."""

    name: ClassVar[str] = "drop-collective"

    lie: bool = option(False, help="call it deduplicated")

    def run(self, context: PassContext) -> None:
        start = all_reduces(context)[0]
        wait = wait_of(start)
        if self.lie:
            context.ledger.deduplicated(start, into="nothing")
        wait.replace_all_uses_with(start.all_input_nodes[0])
        context.graph.erase_node(wait)
        context.graph.erase_node(start)


@REGISTRY.register
@dataclass(frozen=True, kw_only=True)
class ChangeReduceOp(Pass):
    """Turns the sum of the first all-reduce into a maximum."""

    name: ClassVar[str] = "change-reduce-op"

    def run(self, context: PassContext) -> None:
        start = all_reduces(context)[0]
        start.args = (start.args[0], "max", *start.args[2:])


@REGISTRY.register
@dataclass(frozen=True, kw_only=True)
class AddCollective(Pass):
    """Sends the first input once more, for nobody."""

    name: ClassVar[str] = "add-collective"

    def run(self, context: PassContext) -> None:
        start = all_reduces(context)[0]
        with context.graph.inserting_after(wait_of(start)):
            copy = context.graph.node_copy(start)
        copy.meta.pop("counterpoint_origin")


@REGISTRY.register
@dataclass(frozen=True, kw_only=True)
class SpeakTwice(Pass):
    """Gives one collective two verdicts."""

    name: ClassVar[str] = "speak-twice"

    def run(self, context: PassContext) -> None:
        start = all_reduces(context)[0]
        context.ledger.hidden(start, behind="this")
        context.ledger.hidden(start, behind="that")


@REGISTRY.register
@dataclass(frozen=True, kw_only=True)
class HideEverything(Pass):
    """Claims that every all-reduce is hidden; changes nothing."""

    name: ClassVar[str] = "hide-everything"
    contract: ClassVar[Contract] = Contract(requires=frozenset({"order"}))

    def run(self, context: PassContext) -> None:
        context.ledger.hidden(all_reduces(context), behind="mm")
