"""What no order and no choice of buckets can beat.

Merging collectives saves the latency of calls and their launches, and no more: what each byte takes at the best rate
that the group's links have stays. So the bounds are reckoned with collectives that take that alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch.fx import Graph, GraphModule

from counterpoint.cost.model import CostModel
from counterpoint.errors import CounterpointError
from counterpoint.ir.alias import Hazards
from counterpoint.ir.collective import Collective, read_collective
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.ops import Kind
from counterpoint.schedule.work import Work, ranks_of, read_work
from counterpoint.sim.bounds import bounds_of
from counterpoint.sim.timeline import Bounds

_LARGE_BYTES = 2.0**40
"""So large that latency makes no difference."""

_Rates = dict[tuple[Kind, tuple[int, ...]], float]


def least_bounds(graph: Graph | GraphModule, model: CostModel, groups: GroupTable | None = None) -> Bounds:
    """Lower bounds of a graph's step over all orders and all ways of merging its collectives."""
    played = graph.graph if isinstance(graph, GraphModule) else graph
    return bounds_of(least_work(played, model, groups), Hazards.of(played).order_edges(played.nodes))


def least_work(graph: Graph, model: CostModel, groups: GroupTable | None = None) -> tuple[Work, ...]:
    """What remains of a graph's work however its collectives are merged: the travelling, at the best rate."""
    groups = groups or GroupTable()
    rates: _Rates = {}
    return tuple(_without_latency(item, model, groups, rates) for item in read_work(graph, model, groups))


def _without_latency(item: Work, model: CostModel, groups: Mapping[str, tuple[int, ...]], rates: _Rates) -> Work:
    if item.channel is None:
        return item
    try:
        collective = read_collective(item.node)
    except CounterpointError:
        return item
    if not isinstance(collective, Collective):
        return item
    ranks = tuple(ranks_of(collective, GroupTable(groups)))
    key = collective.kind, ranks
    if key not in rates:
        device = collective.sent.devices[0].type if collective.sent.devices else None
        once, twice = (
            model.collective_us(collective.kind, size, ranks, device_type=device)
            for size in (_LARGE_BYTES, 2 * _LARGE_BYTES)
        )
        rates[key] = max(0.0, twice - once) / _LARGE_BYTES
    return replace(item, compute_us=0.0, network_us=min(item.network_us, rates[key] * item.nbytes))
