"""From what was done to a plan as text, and from such a plan back to an order, without costs and without a search."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from counterpoint.ir import metadata, ops
from counterpoint.ir.provenance import origins_of
from counterpoint.ir.reason import Refusal
from counterpoint.passes.bucket_merge import BucketMode
from counterpoint.passes.bucket_plan import Bucket, Member, read_member, starts_of
from counterpoint.passes.overlapping.written import Moment, Move, WrittenPlan
from counterpoint.schedule.engine import Schedule
from counterpoint.schedule.order import by_end, fewest_moves
from counterpoint.schedule.reading import Reading

IDENTITY_DIGITS = 32


def graph_identity(graph: Graph) -> str:
    """Equal for graphs of equal nodes, on every rank: how a rank calls its groups and its device plays no part."""
    found = hashlib.sha256()
    words = _Words()
    for node in graph.nodes:
        target = node.target if isinstance(node.target, str) else str(node.target)
        value = words.text(node.meta["val"]) if metadata.has_value(node) else ""
        if ops.is_collective(node):
            words.learn_group(node)
        found.update(f"{node.op} {node.name} {target} {words.text([node.args, node.kwargs])} {value}\n".encode())
    return found.hexdigest()[:IDENTITY_DIGITS]


class _Words:
    """Arguments and values as text."""

    def __init__(self) -> None:
        self.groups: dict[str, str] = {}

    def learn_group(self, node: Node) -> None:
        """Call the group of a collective by its number."""
        spec = ops.spec_of(node.target)
        name = ops.argument(node, spec.group) if spec is not None and spec.group is not None else None
        if isinstance(name, str):
            self.groups.setdefault(name, f"group {len(self.groups)}")

    def text(self, value: Any) -> str:
        if isinstance(value, Node):
            return f"%{value.name}"
        if isinstance(value, Tensor):
            return f"{value.dtype}{list(map(str, value.shape))}{value.device.type}"
        if isinstance(value, torch.device):
            return value.type
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{key}={self.text(one)}' for key, one in sorted(value.items()))}}}"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self.text, value))}]"
        return self.groups.get(value, repr(value)) if isinstance(value, str) else str(value)


@dataclass(frozen=True)
class Names:
    """What collectives are called in plans: by their starts in the graph that the pass gets."""

    by_origin: Mapping[str, str]

    @staticmethod
    def of(starts: Iterable[Node]) -> Names:
        """The names of these starts, before anything is merged."""
        return Names({origin: start.name for start in starts for origin in origins_of(start)})

    def call(self, start: Node) -> str:
        """What a start is called, after merging too."""
        return next((self.by_origin[o] for o in origins_of(start) if o in self.by_origin), start.name)

    def of_transfers(self, reading: Reading) -> list[str]:
        """The names of all transfers, by number."""
        return [self.call(reading.start(number)) for number in range(len(reading.starts))]


def written(
    plan: WrittenPlan, names: Names, buckets: Sequence[Bucket], reading: Reading, schedule: Schedule | None
) -> WrittenPlan:
    """The plan that tells what was done; `plan` holds its head."""
    merged = tuple(tuple(names.call(start) for start in starts_of(bucket.members)) for bucket in buckets)
    if schedule is None:
        return WrittenPlan(graph=plan.graph, identity=plan.identity, mode=plan.mode, buckets=merged, remark=plan.remark)
    called = names.of_transfers(reading)
    steps = [*(reading.view.nodes[k].name for k in reading.steps), None]
    return WrittenPlan(
        graph=plan.graph,
        identity=plan.identity,
        mode=plan.mode,
        buckets=merged,
        moves=tuple(_moves(reading)),
        moments=tuple(
            Moment(step, tuple(called[n] for n in landings), tuple(called[n] for n in launches))
            for step, landings, launches in zip(steps, schedule.landings, schedule.launches, strict=True)
            if landings or launches
        ),
        over=tuple(called[number] for number in by_end(schedule)),
        remark=plan.remark,
    )


def _moves(reading: Reading) -> Iterator[Move]:
    """What steps have changed their place."""
    end = len(reading.view.nodes)
    for moved, before in fewest_moves([*sorted(reading.steps), end], [*reading.steps, end]):
        names = tuple(reading.view.nodes[k].name for k in moved)
        yield Move(names, reading.view.nodes[before].name if before < end else None)


def planned_steps(plan: WrittenPlan, reading: Reading) -> Reading | Refusal:
    """The reading with its steps in the order that a plan tells."""
    number = {reading.view.nodes[k].name: step for step, k in enumerate(reading.steps)}
    end = len(number)
    moved = [name for move in plan.moves for name in move.steps]
    unknown = [name for name in (*moved, *(move.before for move in plan.moves)) if name not in (*number, None)]
    if unknown or len(set(moved)) < len(moved):
        return _changed(str(unknown[0] if unknown else moved[0]))
    gone = {number[name] for name in moved}
    arriving = {end if move.before is None else number[move.before]: move.steps for move in plan.moves}
    order = []
    for step in range(end + 1):
        order += [number[name] for name in arriving.get(step, ())]
        order += [step] if step < end and step not in gone else []
    if plan.moves and not plan.over:
        return Refusal("plan-changed", moved[0], "steps move, and nothing is told of the order: `over` is missing")
    if len(order) < end or not reading.problem.allows(order):
        return _changed(moved[0])
    return reading.reordered(order)


def planned_buckets(plan: WrittenPlan, starts: Sequence[Node]) -> tuple[Bucket, ...] | Refusal:
    """The buckets that a plan names."""
    known = {start.name: start for start in starts}
    found = []
    for bucket in plan.buckets:
        missing = [name for name in bucket if name not in known]
        if missing:
            return _changed(missing[0])
        members = [read_member(known[name], multi_dtype=False) for name in bucket]
        readable = [member for member in members if isinstance(member, Member)]
        if len(readable) < len(members):
            return next(member for member in members if isinstance(member, Refusal))
        if len({member.key for member in readable}) > 1:
            return Refusal("plan-changed", bucket[0], f"{', '.join(bucket)} cannot be one collective")
        found.append(Bucket(readable[0].key, tuple(sorted(readable, key=lambda member: member.start))))
    return tuple(found)


def planned_schedule(plan: WrittenPlan, names: Names, reading: Reading) -> Schedule | Refusal | None:
    """The schedule that a plan tells; None where the order stays as it is. Nothing is known of times in it."""
    if not plan.over:
        return None
    called = names.of_transfers(reading)
    number = {name: n for n, name in enumerate(called)}
    step = {reading.view.nodes[k].name: index for index, k in enumerate(reading.steps)}
    count = len(reading.steps) + 1
    launches: list[tuple[int, ...]] = [()] * count
    landings: list[tuple[int, ...]] = [()] * count
    for moment in plan.moments:
        unknown = [name for name in (*moment.landings, *moment.launches) if name not in number]
        unknown += [moment.before] if moment.before is not None and moment.before not in step else []
        if unknown:
            return _changed(unknown[0])
        at = count - 1 if moment.before is None else step[moment.before]
        launches[at] = tuple(number[name] for name in moment.launches)
        landings[at] = tuple(number[name] for name in moment.landings)
    if sorted(plan.over) != sorted(called) or len(number) < len(called):
        return _changed(next(iter({*plan.over} ^ {*called}), called[0] if called else "the graph"))
    ends = {name: float(place) for place, name in enumerate(plan.over)}
    return Schedule(
        tuple(launches), tuple(landings), tuple(ends[name] for name in called), (0.0,) * len(called), step_us=0.0
    )


def head_of(graph: Graph, name: str, mode: BucketMode) -> WrittenPlan:
    """A plan in which nothing is done."""
    return WrittenPlan(graph=name, identity=graph_identity(graph), mode=mode)


def _changed(name: str) -> Refusal:
    return Refusal("plan-changed", name, "the plan and the graph do not both know it")
