"""A graph as a problem: which nodes are steps, which are light, and what each transfer needs and is needed by.

A light node that feeds only transfers moves with them, and one that only looks at results is left until somebody needs
it: casts and packing before a start, views, casts and unpacking behind a wait. All others are steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate, islice
from typing import cast

import torch
from torch.fx import Node

from counterpoint._torch import OpOverload, size_hint
from counterpoint.cost.compute import takes_no_time
from counterpoint.cost.model import CostModel
from counterpoint.cost.traffic import is_pointwise
from counterpoint.ir import effects
from counterpoint.ir.collective import Collective
from counterpoint.ir.effects import Effect
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.ops import Kind
from counterpoint.ir.view import GraphView
from counterpoint.schedule.problem import Problem, Transfer
from counterpoint.schedule.work import Work, ranks_of, read_work

_ATEN = torch.ops.aten
_COPYING = frozenset({_ATEN.cat.default, _ATEN.stack.default, _ATEN.constant_pad_nd.default, _ATEN.clone.default})

LATE_DEPTH = 8
"""How many light nodes behind a wait are still taken for its unpacking, rather than for compute."""


class Role(Enum):
    """What a node is to the schedule."""

    GIVEN = "given"
    STEP = "step"
    EARLY = "early"
    """Light, and used by starts only."""
    LATE = "late"
    """Light, and made of results only."""
    START = "start"
    WAIT = "wait"
    OUTPUT = "output"


@dataclass(frozen=True)
class Reading:
    """A graph, its problem, and how the two belong together."""

    view: GraphView
    work: tuple[Work, ...]
    roles: tuple[Role, ...]
    steps: tuple[int, ...]
    """Positions of the nodes that are steps."""
    starts: tuple[int, ...]
    """Positions of the starts, by number of transfer."""
    waits: tuple[tuple[int, ...], ...]
    """Positions of each transfer's waits."""
    problem: Problem

    def start(self, number: int) -> Node:
        """The node that starts a transfer."""
        return self.view.nodes[self.starts[number]]

    def reordered(self, order: Sequence[int]) -> Reading:
        """The same with its steps in another order."""
        return replace(self, steps=tuple(self.steps[k] for k in order), problem=self.problem.reordered(order))

    def following(self, nodes: Sequence[Node]) -> Reading:
        """The same with its steps in the order of these nodes as far as they may; others stay behind who they stood
        behind."""
        place = {node: k for k, node in enumerate(nodes)}
        places = accumulate((place.get(self.view.nodes[k]) for k in self.steps), _last_known, initial=-1)
        wanted = dict(enumerate(islice(places, 1, None)))
        return self.reordered(self.problem.in_order(sorted(wanted, key=lambda step: (wanted[step], step))))


def read_problem(view: GraphView, model: CostModel, groups: GroupTable) -> Reading:
    """Read a graph. One walk forwards and one backwards; each edge is looked at a few times."""
    work = read_work(view.graph, model, groups)
    return _Reader(view, work, groups).read()


class _Reader:
    def __init__(self, view: GraphView, work: tuple[Work, ...], groups: GroupTable) -> None:
        self.view, self.work, self.groups = view, work, groups
        self.index = {node: k for k, node in enumerate(view.nodes)}
        self.sources = [[self.index[source] for source in view.predecessors(node)] for node in view.nodes]
        self.roles = [_first_role(item) for item in work]
        self.number = {k: n for n, k in enumerate(k for k, role in enumerate(self.roles) if role is Role.START)}

    def read(self) -> Reading:
        self._find_early()
        self._find_late()
        steps = [k for k, role in enumerate(self.roles) if role is Role.STEP]
        waits: list[list[int]] = [[] for _ in self.number]
        for k, item in enumerate(self.work):
            if self.roles[k] is Role.WAIT and item.waits_for is not None:
                waits[self.number[self.index[item.waits_for]]].append(k)
        self._walk()
        transfers = tuple(self._transfer(k) for k in self.number)
        problem = Problem(tuple(self.step_us), transfers, step_needs=tuple(self.step_needs))
        return Reading(
            self.view, self.work, tuple(self.roles), tuple(steps), tuple(self.number), tuple(map(tuple, waits)), problem
        )

    def _find_early(self) -> None:
        for k in range(len(self.work) - 1, -1, -1):
            node = self.view.nodes[k]
            if self.roles[k] is Role.STEP and node.users and _is_light(node) and _is_pure(node):
                users = {self.roles[self.index[user]] for user in node.users}
                if users <= {Role.START, Role.EARLY}:
                    self.roles[k] = Role.EARLY

    def _find_late(self) -> None:
        depth: dict[int, int] = {}
        for k, node in enumerate(self.view.nodes):
            if self.roles[k] is not Role.STEP or not _is_light(node):
                continue
            data = [self.index[source] for source in node.all_input_nodes]
            behind = [depth.get(s, 0) for s in data if self.roles[s] in (Role.WAIT, Role.LATE)]
            known = all(self.roles[s] in (Role.WAIT, Role.LATE, Role.GIVEN) for s in data)
            if behind and known and max(behind) < LATE_DEPTH:
                self.roles[k], depth[k] = Role.LATE, max(behind) + 1

    def _walk(self) -> None:
        """What each node must come after: so many steps, and the end of which transfers; and who uses what first."""
        self.after = [0] * len(self.work)
        self.ended: list[frozenset[int]] = [frozenset()] * len(self.work)
        self.made: list[frozenset[int]] = [frozenset()] * len(self.work)
        """The steps of which a node is made directly, or through light nodes."""
        self.users: list[list[int]] = [[] for _ in self.number]
        self.step_us: list[float] = []
        self.step_needs: list[tuple[int, ...]] = []
        self.fence: int | None = None
        """The last barrier."""
        self.pack_us = [0.0] * len(self.number)
        self.land_us = [0.0] * len(self.number)
        for k, role in enumerate(self.roles):
            self.after[k] = max((self.after[s] for s in self.sources[k]), default=0)
            ended = self._joined([self.ended[s] for s in self.sources[k]])
            self.made[k] = self._made_of(k)
            if role is Role.STEP:
                self._step(k, ended)
                self.after[k], ended = len(self.step_us), frozenset()
            elif role is Role.WAIT:
                started = self.work[k].waits_for
                ended = frozenset() if started is None else frozenset({self.number[self.index[started]]})
            elif role is Role.LATE and ended:
                self.land_us[min(ended)] += self.work[k].compute_us
            self.ended[k] = ended
            if role is Role.EARLY:
                self._charge(k)

    def _step(self, k: int, ended: frozenset[int]) -> None:
        step, needs = len(self.step_us), self.made[k]
        for number in ended:
            self.users[number].append(step)
        if effects.effect_of(self.view.nodes[k]) is Effect.BARRIER:
            # Also what touches nothing that it may touch stays on its side.
            needs, self.fence = needs.union(range(self.fence or 0, step)), step
        elif self.fence is not None:
            needs = needs.union((self.fence,))
        self.step_us.append(self.work[k].compute_us)
        self.step_needs.append(tuple(sorted(needs)))
        self.made[k] = frozenset((step,))

    def _made_of(self, k: int) -> frozenset[int]:
        """What is behind a transfer is made of that, and no longer of what was sent."""
        passed = (Role.START,) if self.roles[k] is Role.WAIT else ()
        return self._joined([self.made[s] for s in self.sources[k] if self.roles[s] not in passed])

    def _charge(self, k: int) -> None:
        """Packing is paid by the transfer that it is for; what several share, by the first."""
        node = self.view.nodes[k]
        while self.roles[self.index[node]] is Role.EARLY:
            node = min(node.users)
        self.pack_us[self.number[self.index[node]]] += self.work[k].compute_us

    @staticmethod
    def _joined(sets: Sequence[frozenset[int]]) -> frozenset[int]:
        found = [one for one in sets if one]
        return found[0].union(*found[1:]) if len(found) > 1 else found[0] if found else frozenset()

    def _transfer(self, k: int) -> Transfer:
        number, item = self.number[k], self.work[k]
        # `read_work` gives a channel only to what can be read.
        collective = cast(Collective, self.view.collective(item.node))
        sent, received = (size_hint(payload.nbytes) or 0 for payload in (collective.sent, collective.received))
        users = self.users[number]
        return Transfer(
            members=(number,),
            kind=collective.kind,
            channel=item.channel or "",
            ranks=tuple(ranks_of(collective, self.groups)),
            device_type=collective.sent.devices[0].type if collective.sent.devices else "cpu",
            nbytes=item.nbytes,
            network_us=item.network_us,
            launch_us=item.compute_us + self.pack_us[number],
            land_us=self.land_us[number],
            after=self.after[k],
            needs=tuple(sorted(self.ended[k])),
            first_use=max(users[0] if users else len(self.step_us), self.after[k]),
            held_bytes=received if collective.kind is Kind.ALL_GATHER else sent,
            makers=tuple(sorted(self.made[k])),
            users=tuple(users),
        )


def _last_known(before: int, place: int | None) -> int:
    return before if place is None else place


def _first_role(item: Work) -> Role:
    node = item.node
    if node.op in ("placeholder", "get_attr"):
        return Role.GIVEN
    if node.op == "output":
        return Role.OUTPUT
    if item.channel is not None:
        return Role.START
    return Role.WAIT if item.waits_for is not None else Role.STEP


def _is_light(node: Node) -> bool:
    """Whether a node only looks at, copies or scales what it is given."""
    if takes_no_time(node):
        return True
    if not isinstance(node.target, OpOverload) or effects.effect_of(node) not in (Effect.PURE, Effect.MUTATES):
        return False
    return is_pointwise(node.target) or node.target in _COPYING or node.target.namespace == "counterpoint"


def _is_pure(node: Node) -> bool:
    return effects.effect_of(node) is Effect.PURE
