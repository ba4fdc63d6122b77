"""Carrying out the buckets of inductor's door: one transaction for all, and one each where that is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx import Node
from torch.fx.traceback import NodeSource, NodeSourceAction
from torch.utils import _pytree as pytree
from torch.utils._ordered_set import OrderedSet

from counterpoint.errors import CounterpointError, GraphError, StaleViewError
from counterpoint.inductor.fx_passes.bucketing_bodies import Body, Recorder
from counterpoint.inductor.fx_passes.bucketing_reading import has_mergeable_all_gather_convert_dtype
from counterpoint.inductor.fx_passes.order import put_in_order
from counterpoint.ir import metadata, ops
from counterpoint.ir.collection import without_collection
from counterpoint.ir.edit import GraphEditor, Transaction
from counterpoint.ir.groups import group_of
from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.passes.bucket_plan import Bucket, Member, read_member, starts_of

LOGGER = logging.getLogger("counterpoint.bucketing")

Merged = tuple[list[Node], dict[Node, Node]]
"""The new nodes, and the new result for each old wait."""

LEFT_ALONE: Merged = ([], {})
_NOTED = ("nn_module_stack", "fwd_nn_module_stack", "stack_trace", "custom")


@dataclass(frozen=True, eq=False)
class Work:
    """One bucket to be merged."""

    starts: Sequence[Node]
    function: Callable[..., list[torch.Tensor]]
    """What is traced, unless `body` does the same."""
    arguments: Callable[[list[Node]], tuple[Any, ...]]
    """What the function is called with, given the nodes that are packed."""
    body: Body | None = None
    before: Node | None = None
    """Where the merged collective is put: behind the last member unless said."""
    wait_before: Node | None = None
    """Where its wait is put: where the first old one stood unless said."""
    extra: Sequence[Node] = ()
    """Nodes whose values occur among the arguments, such as that of a group."""
    transform: Callable[[Node], Node] | None = None
    """Names another node for one that would be packed."""


class Planned(list[list[Node]]):
    """Buckets as a planner gives them, and what it has read of the graph for that, as long as it is true."""

    def __init__(
        self, buckets: Sequence[Bucket], members: Mapping[Node, Member], editor: GraphEditor, view: GraphView
    ) -> None:
        super().__init__(starts_of(bucket.members) for bucket in buckets)
        self.members, self.editor, self._view = members, editor, view

    def holds(self, graph: fx.Graph) -> bool:
        """Whether this is about the graph as it is now."""
        try:
            self._view.check_all()
        except StaleViewError:
            return False
        return self._view.graph is graph


@without_collection()
def merge_all(graph: fx.Graph, works: Sequence[Work], planned: object = None) -> list[Merged]:
    """Merge the buckets; nothing for those that cannot be merged, which are left as they are.

    planned: the list that the buckets come from, which may be a planner's own.
    """
    if isinstance(planned, Planned) and planned.holds(graph):
        editor, members = planned.editor, planned.members
    else:
        put_in_order(graph)
        editor, members = GraphEditor(graph), {}
    plans = [_readable(work, members) for work in works]
    made = _attempt(editor, [plan for plan in plans if plan is not None])
    return [made.get(plan, LEFT_ALONE) if plan is not None else LEFT_ALONE for plan in plans]


@dataclass(frozen=True, eq=False)
class _Plan:
    work: Work
    members: list[Member]
    values: list[Node]
    """What is packed: what is sent, or what a cast for the collective alone is made of."""


def _readable(work: Work, known: Mapping[Node, Member]) -> _Plan | None:
    """What the bucket packs; None where a member cannot be merged with anything."""
    members = []
    for start in work.starts:
        read = known.get(start) or read_member(start, multi_dtype=True)
        if isinstance(read, Refusal):
            LOGGER.debug("the bucket of %s is left alone: %s", work.starts[0].name, read)
            return None
        members.append(read)
    for member in members:
        if member.key != members[0].key:
            raise GraphError(
                f"{members[0].start.name} and {member.start.name} cannot share a collective: "
                f"{members[0].key} and {member.key}",
                next_step="put collectives of one kind, group, reduction, device and element type into a bucket",
            )
    transform = work.transform or (lambda node: node)
    values = [transform(_packed(member.start)) for member in members]
    return _Plan(work, members, values)


def _packed(start: Node) -> Node:
    (sent,) = ops.tensors(start, ("input",))
    (source,) = sent.all_input_nodes if has_mergeable_all_gather_convert_dtype(start) else (sent,)
    return source


def _attempt(editor: GraphEditor, plans: Sequence[_Plan]) -> dict[_Plan, Merged]:
    made: dict[_Plan, Merged] = {}
    try:
        refusal = editor.attempt(f"merge {len(plans)} buckets", lambda tx: made.update(_apply(tx, plans)))
    except CounterpointError as error:
        # The graph is as it was; a compile must not fail because an optimisation did not apply.
        LOGGER.debug("%s", error)
        refusal = Refusal("bucket-form", plans[0].members[0].start.name, str(error))
    if refusal is None:
        return made
    if len(plans) > 1:
        return {plan: merged for one in plans for plan, merged in _attempt(editor, [one]).items()}
    LOGGER.debug("%s is left alone: %s", ", ".join(s.name for s in plans[0].work.starts), refusal)
    return {}


def _apply(tx: Transaction, plans: Sequence[_Plan]) -> dict[_Plan, Merged]:
    made = {plan: _write(tx, plan) for plan in plans}
    tx.replace({wait: result for _, replacements in made.values() for wait, result in replacements.items()})
    tx.erase([node for plan in plans for node in _gone(plan)])
    tx.settle()
    return made


def _gone(plan: _Plan) -> Iterator[Node]:
    for member in plan.members:
        yield from (member.wait, member.start)
        (sent,) = member.collective.inputs
        if sent is not _packed(member.start):
            yield sent


def _write(tx: Transaction, plan: _Plan) -> Merged:
    work, waits = plan.work, [member.wait for member in plan.members]
    anchor = work.before or work.starts[-1].next
    made, results = _traced(tx, plan, anchor) if work.body is None else _written(tx, plan, anchor, work.body)
    first = next((index for index, node in enumerate(made) if ops.is_wait(node)), len(made))
    target = work.wait_before or (min(waits) if anchor < min(waits) else None)
    if target is not None and made[first:]:
        tx.move(made[first:], before=target)
    _annotate(tx, made, work.starts)
    return made, dict(zip(waits, results, strict=True))


def _written(tx: Transaction, plan: _Plan, anchor: Node, body: Body) -> Merged | tuple[list[Node], list[Node]]:
    emit = Recorder(tx, anchor, plan.work.starts)
    nodes = {id(node.meta["val"]): node for node in plan.work.extra}
    _, *rest = plan.work.arguments(plan.values)
    launched = body(emit, plan.values, *(nodes.get(id(value), value) for value in rest))
    results = launched.finish(emit)
    return emit.made, results


def _traced(tx: Transaction, plan: _Plan, anchor: Node) -> tuple[list[Node], list[Node]]:
    """A function that we have no body for, traced with the values of what is packed."""
    leaves, form = pytree.tree_flatten(plan.work.arguments(plan.values))
    count = len(plan.values)

    def body(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return plan.work.function(*pytree.tree_unflatten([*tensors, *leaves[count:]], form))

    behind = anchor.prev
    results = tx.inline(body, plan.values, before=anchor, like=plan.work.starts)
    made = []
    while (behind := behind.next) is not anchor:
        made.append(behind)
    return made, list(results)


def _annotate(tx: Transaction, made: Sequence[Node], starts: Sequence[Node]) -> None:
    """Where the members come from, on the one node that does their work.

    Inductor notes all members on all new nodes, which takes time and memory with the square of the bucket.
    """
    start = next((node for node in made if ops.is_collective(node)), None)
    if start is None:
        return
    noted: dict[str, Any] = {f"bucketing_{key}_sources": _sources(key, starts) for key in _NOTED}
    actions = [NodeSourceAction.CREATE, NodeSourceAction.REPLACE]
    noted["from_node"] = [NodeSource(node, "bucketing_pass", actions) for node in starts]
    tx.annotate(start, **noted)


def _sources(key: str, starts: Sequence[Node]) -> Any:
    found = [node.meta[key] for node in starts if node.meta.get(key)]
    return OrderedSet(found) if key == "stack_trace" else found


def group_argument(start: Node) -> tuple[Any, str | None, list[Node]]:
    """What a function is given as the group, the group's name where it is known, and the node that computes it."""
    given = ops.argument(start, "group_name")
    name = group_of(given).name
    return (metadata.value_of(given), name, [given]) if isinstance(given, Node) else (given, name, [])
