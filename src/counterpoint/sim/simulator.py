"""Playing a graph on paper: one compute stream in graph order, a channel for each group, waits that block.

    timeline = simulate(captured.gm, CostModel(topology=topology("h200x8-ib400")), GroupTable(captured.groups))

The compute stream runs the nodes one after the other. A start costs it a launch, and its collective then waits for its
channel and works there; a wait stands until the collective is over. Memory is counted in graph order, as a caching
allocator on one stream does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import Graph, GraphModule, Node

from counterpoint.cost.model import CostModel
from counterpoint.ir.alias import Hazards
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.provenance import module_of, origins_of, source_of
from counterpoint.schedule.memory import alive_bytes, lifetimes
from counterpoint.schedule.work import Work, read_work
from counterpoint.sim.bounds import bounds_of
from counterpoint.sim.channels import Channels, Transfer
from counterpoint.sim.timeline import COMPUTE, Span, Timeline


def simulate(
    graph: Graph | GraphModule,
    model: CostModel,
    groups: GroupTable | None = None,
    *,
    sharing: bool = False,
    held: Collection[Node] | None = None,
    title: str = "",
    places: bool = True,
) -> Timeline:
    """Play one step of one rank, in the order of the graph.

    sharing: whether collectives of different groups that use one level's links at once slow each other down; else every
    group has links of its own. held: the inputs that the caller keeps alive, by default all of them. places: whether
    spans tell lines and modules of the user's code.
    """
    played = graph.graph if isinstance(graph, GraphModule) else graph
    groups = groups or GroupTable()
    work = read_work(played, model, groups)
    hazards = Hazards.of(played)
    nodes = tuple(played.nodes)
    kept = [node for node in nodes if node.op in ("placeholder", "get_attr")] if held is None else held
    alive = alive_bytes(len(nodes), lifetimes(nodes, hazards, set(kept)))
    player = _Player(Channels(sharing=sharing), places=places)
    for item, nbytes in zip(work, alive, strict=True):
        player.play(item, nbytes)
    step_us = player.finish()
    return Timeline(
        spans=tuple(player.spans()),
        memory=tuple(player.memory),
        step_us=step_us,
        compute_us=player.compute_us,
        exposed_us=step_us - player.compute_us,
        peak_bytes=max(alive, default=0),
        bounds=bounds_of(work, hazards.order_edges(nodes)),
        unknown=tuple(item.node.name for item in work if not item.known),
        notes=_notes(work, model, groups),
        title=title,
        parameters=_parameters(model, sharing),
    )


def step_of(work: Sequence[Work], *, sharing: bool = False) -> float:
    """How long a step takes that does this work in this order. For trying out orders; `simulate` tells the rest."""
    player = _Player(Channels(sharing=sharing), places=False)
    for item in work:
        player.play(item, 0)
    return player.finish()


class _Player:
    """The clock of the compute stream and what has happened on it."""

    def __init__(self, channels: Channels, *, places: bool) -> None:
        self.memory: list[tuple[float, int]] = []
        self.compute_us = 0.0
        self._channels = channels
        self._places = places
        self._now = 0.0
        self._spans: list[Span | tuple[Work, Transfer]] = []
        self._flying: dict[Node, Transfer] = {}
        self._exposed: dict[Node, float] = {}

    def play(self, item: Work, nbytes: int) -> None:
        """Run one node."""
        if item.waits_for is not None:
            self._wait(item)
        if not self.memory or self.memory[-1][1] != nbytes:
            self.memory.append((self._now, nbytes))
        if item.compute_us:
            kind = "launch" if item.channel is not None else item.kind
            self._spans.append(self._span(item, self._now, self._now + item.compute_us, kind))
            self._now += item.compute_us
            self.compute_us += item.compute_us
        if item.channel is not None:
            transfer = Transfer(item.channel, item.shares or item.channel, item.network_us)
            self._channels.post(transfer, self._now)
            self._flying[item.node] = transfer
            self._spans.append((item, transfer))

    def _wait(self, item: Work) -> None:
        transfer = self._flying.get(item.waits_for) if item.waits_for is not None else None
        if item.waits_for is None or transfer is None:
            return
        end = self._channels.end_of(transfer)
        if end > self._now:
            self._spans.append(self._span(item, self._now, end, "wait"))
            self._exposed[item.waits_for] = self._exposed.get(item.waits_for, 0.0) + end - self._now
            self._now = end

    def finish(self) -> float:
        """When everything is over: compute, and also what nobody waits for."""
        return max(self._now, self._channels.drained())

    def spans(self) -> list[Span]:
        """All spans in graph order."""
        return [self._on_channel(*entry) if isinstance(entry, tuple) else entry for entry in self._spans]

    def _on_channel(self, item: Work, transfer: Transfer) -> Span:
        span = self._span(item, transfer.start_us, transfer.end_us, item.kind)
        return replace(span, lane=transfer.channel, exposed_us=self._exposed.get(item.node, 0.0))

    def _span(self, item: Work, start_us: float, end_us: float, kind: str) -> Span:
        node = item.node
        return Span(
            lane=COMPUTE,
            name=node.name,
            start_us=start_us,
            end_us=end_us,
            kind=kind,
            nbytes=item.nbytes,
            origin=origins_of(node),
            source=source_of(node) if self._places else "",
            module=module_of(node) if self._places else "",
        )


def _parameters(model: CostModel, sharing: bool) -> dict[str, Any]:
    return {"model": model.text, "sharing": sharing}


def _notes(work: Sequence[Work], model: CostModel, groups: GroupTable) -> tuple[str, ...]:
    unknown = sum(not item.known for item in work)
    notes = [f"{unknown} nodes count as no time, because nobody knows what they take"] if unknown else []
    if model.topology is None and model.table is None and not model.links.links:
        notes.append(f"no topology was given and nothing measured: links are those typical of {model.device_type}")
    if not groups and any(item.channel is not None for item in work):
        notes.append("the ranks of the groups are not known: each counts as neighbours")
    return tuple(notes)
