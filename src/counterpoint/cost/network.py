"""How long a collective takes on a topology, by algorithm: pure formulas of kind, bytes and ranks.

Every formula is a number of steps, each with the latency of a level, and bytes over the bandwidth of a level. Bytes are
those of the whole tensor: what a gather receives, what a reduce-scatter is given. Where a level has several ways of
sending, one with little latency and one with much bandwidth, the best is taken: that is what makes small messages
quick and large ones fill the link.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from counterpoint.cost.link import traffic_bytes as ring_bytes
from counterpoint.cost.topology import Level, Topology
from counterpoint.ir.ops import Kind


class Algorithm(Enum):
    """How ranks pass data on."""

    RING = "ring"
    """Each rank to its neighbour: least traffic, a step for every rank."""
    TREE = "tree"
    """Up and down a binary tree of nodes: few steps, each byte twice."""
    DIRECT = "direct"
    """Each rank to each other one."""
    ONE_SHOT = "one-shot"
    """Every rank reads what all others have and does the whole work: one step, most traffic."""
    TWO_SHOT = "two-shot"
    """Every rank reads its share of all others' and writes the result to them."""
    MULTICAST = "multicast"
    """The switch adds up and copies."""
    HIERARCHICAL = "hierarchical"
    """Inside the nodes first, then one share of the data between them, then inside again."""


LIBRARY = (Algorithm.RING, Algorithm.TREE, Algorithm.DIRECT, Algorithm.MULTICAST)
"""What a communication library chooses among by itself."""

# What a kernel that reads peers' memory takes until it runs; NCCL's LL, which does the same, has 6.6 us (tuning.cc).
PEER_CALL_US = 6.6
# Signalling all peers and seeing their signals: two quick steps.
PEER_BARRIER_STEPS = 2
# NCCL, src/graph/tuning.cc: latency of NVLS, which sums and copies in the switch.
MULTICAST_US = 25.0
# What a rank sends in an all-reduce through the switch, in parts of the tensor. Every part once to be added up and a
# share of the result would be 1 + 1/n; nccl-tests on eight H100 report a bus bandwidth of some 480 GB/s with NVLS,
# where the links carry 371, and that is 1.75 * 371 / 480.
MULTICAST_SHARES = 1.35


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How a group of ranks lies on a topology, as the formulas see it."""

    topology: Topology
    ranks: int
    levels: tuple[Level, ...]
    """The levels that the group uses, from the inside out."""
    members: tuple[int, ...]
    """For each of these levels how many of the group one unit of the level below holds, the fewest anywhere."""
    units: tuple[int, ...]
    """For each of these levels how many units of the level below meet in one unit of it, the most anywhere."""

    @staticmethod
    def of(topology: Topology, ranks: Sequence[int]) -> Reach:
        """The group of these global ranks."""
        levels, members, units = [], [], []
        inner = {rank: rank for rank in ranks}
        for level in topology.levels:
            outer = {rank: level.unit_of(rank) for rank in inner}
            met: dict[int, dict[int, int]] = {}
            for rank, unit in outer.items():
                below = met.setdefault(unit, {})
                below[inner[rank]] = below.get(inner[rank], 0) + 1
            most = max((len(below) for below in met.values()), default=1)
            if most > 1:
                levels.append(level)
                members.append(min(count for below in met.values() for count in below.values()))
                units.append(most)
            inner = outer
        return Reach(
            topology=topology,
            ranks=len(set(ranks)),
            levels=tuple(levels),
            members=tuple(members),
            units=tuple(units),
        )

    def ring_gbps(self, way: int) -> float:
        """What every rank sends in a ring, in Gbit/s.

        Libraries lay a ring through each network card of a node, so that all of them carry a part: a rank sees the sum
        of the cards that its node's members have, up to what its own link inside the node carries.
        """
        pairs = zip(self.levels, self.members, strict=True)
        return min(level.ways[way].bandwidth_gbps * _cards(level, members) for level, members in pairs)

    def steps_us(self, steps: float, way: int) -> float:
        """The latency of a ring that takes so many steps a rank, those between units at their own price."""
        # A ring enters every unit once, so it takes as many steps between units as there are units (NCCL's tuning.cc).
        total, counted = 0.0, 1
        for level, units in zip(reversed(self.levels), reversed(self.units), strict=True):
            total += (counted * units - counted) * level.ways[way].latency_us
            counted *= units
        return total * steps / max(1, counted - 1)


def _cards(level: Level, members: int) -> int:
    return members if level.ports is None else min(members, level.ports)


def _transfer_us(nbytes: float, gbps: float) -> float:
    return nbytes * 8 / (gbps * 1e3)


def _ring(kind: Kind, nbytes: float, group: Reach, way: int) -> float:
    rounds = 2 if kind is Kind.ALL_REDUCE else 1
    latency = group.steps_us(rounds * (group.ranks - 1), way)
    traffic = ring_bytes(kind, nbytes, group.ranks) if kind not in _WHOLE else nbytes
    return latency + _transfer_us(traffic, group.ring_gbps(way))


def _tree(kind: Kind, nbytes: float, group: Reach, way: int) -> float:
    # NCCL's tree: a chain inside a node, a binary tree between nodes, up and down at once (tuning.cc). Each rank
    # passes every byte on twice in an all-reduce, once in a broadcast or a reduction.
    rounds = 2 if kind is Kind.ALL_REDUCE else 1
    latency = 0.0
    for index, (level, units) in enumerate(zip(group.levels, group.units, strict=True)):
        hops = units - 1 if index == 0 and len(group.levels) > 1 else math.ceil(math.log2(units))
        latency += hops * level.ways[way].latency_us
    return rounds * (latency + _transfer_us(nbytes, group.ring_gbps(way)))


def _direct(kind: Kind, nbytes: float, group: Reach, way: int) -> float:
    """Every pair at once: what goes to ranks of other units takes the outer links, of which a rank has its share."""
    latency, slowest, inside = 0.0, 0.0, 1
    for level, members, units in zip(group.levels, group.members, group.units, strict=True):
        peers = inside * (units - 1)
        gbps = level.ways[way].bandwidth_gbps * _cards(level, members) / members
        slowest = max(slowest, _transfer_us(nbytes * peers / group.ranks, gbps))
        latency = max(latency, level.ways[way].latency_us)
        inside *= units
    return latency + slowest


def _pairwise(kind: Kind, nbytes: float, group: Reach, way: int) -> float:
    """One message to one peer."""
    return sum(level.ways[way].latency_us for level in group.levels[-1:]) + _transfer_us(nbytes, _own_gbps(group, way))


def _own_gbps(group: Reach, way: int) -> float:
    return min(level.ways[way].bandwidth_gbps for level in group.levels)


def _one_shot(kind: Kind, nbytes: float, group: Reach, way: int) -> float:
    received = nbytes * (group.ranks - 1) / (1 if kind is Kind.ALL_REDUCE else group.ranks)
    return _barriers_us(1, group) + _transfer_us(received, _own_gbps(group, way))


def _two_shot(kind: Kind, nbytes: float, group: Reach, way: int) -> float:
    return _barriers_us(2, group) + _transfer_us(
        ring_bytes(Kind.ALL_REDUCE, nbytes, group.ranks), _own_gbps(group, way)
    )


def _barriers_us(count: int, group: Reach) -> float:
    quickest = min(way.latency_us for way in group.levels[-1].ways)
    return PEER_CALL_US + (count + 1) * PEER_BARRIER_STEPS * quickest


def _multicast(kind: Kind, nbytes: float, group: Reach, way: int) -> float:
    shares = MULTICAST_SHARES if kind is Kind.ALL_REDUCE else (group.ranks - 1) / group.ranks
    return MULTICAST_US + _transfer_us(nbytes * shares, _own_gbps(group, way))


def _hierarchical(kind: Kind, nbytes: float, group: Reach, way: int) -> float:
    """Scatter inside, the rest on a share of the data outside, gather inside; only what the kind needs of it."""
    total, share = 0.0, nbytes
    for level, units in zip(group.levels[:-1], group.units[:-1], strict=True):
        phases = 2 if kind is Kind.ALL_REDUCE else 1
        sent = _transfer_us(share * (units - 1) / units, level.ways[way].bandwidth_gbps)
        total += phases * ((units - 1) * level.ways[way].latency_us + sent)
        share /= units
    top, units = group.levels[-1], group.units[-1]
    rounds = 2 if kind is Kind.ALL_REDUCE else 1
    gbps = top.ways[way].bandwidth_gbps * _cards(top, group.members[-1]) / group.members[-1]
    return total + rounds * ((units - 1) * top.ways[way].latency_us + _transfer_us(share * (units - 1) / units, gbps))


Formula = Callable[[Kind, float, Reach, int], float]

_WHOLE = frozenset({Kind.BROADCAST, Kind.REDUCE, Kind.SEND, Kind.RECV, Kind.P2P_BATCH, Kind.PEER_MEMORY})
"""Kinds that move the whole tensor over a link."""

FORMULAS: Mapping[Algorithm, Formula] = MappingProxyType(
    {
        Algorithm.RING: _ring,
        Algorithm.TREE: _tree,
        Algorithm.DIRECT: _direct,
        Algorithm.ONE_SHOT: _one_shot,
        Algorithm.TWO_SHOT: _two_shot,
        Algorithm.MULTICAST: _multicast,
        Algorithm.HIERARCHICAL: _hierarchical,
    }
)

_RINGS = frozenset({Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.BROADCAST, Kind.REDUCE})
_TREES = frozenset({Kind.ALL_REDUCE, Kind.BROADCAST, Kind.REDUCE})
_REDUCING = frozenset({Kind.ALL_REDUCE, Kind.REDUCE_SCATTER})
_FUSED: Mapping[Kind, Kind] = MappingProxyType(
    {
        Kind.GATHER_MATMUL: Kind.ALL_GATHER,
        Kind.MATMUL_SCATTER: Kind.REDUCE_SCATTER,
        Kind.MATMUL_REDUCE: Kind.ALL_REDUCE,
        Kind.EXCHANGE_MATMUL: Kind.ALL_TO_ALL,
        Kind.MATMUL_EXCHANGE: Kind.ALL_TO_ALL,
    }
)


def moved(kind: Kind, device_type: str) -> Kind:
    """The collective whose traffic a kind has: that inside a fused operator, and gloo's way of scattering."""
    kind = _FUSED.get(kind, kind)
    # gloo's reduce-scatter is an all-reduce of which each rank keeps its part (seen in torch's profiler, 2.13).
    return Kind.ALL_REDUCE if kind is Kind.REDUCE_SCATTER and device_type == "cpu" else kind


def choices(kind: Kind, nbytes: float, ranks: Sequence[int], topology: Topology) -> Mapping[Algorithm, float]:
    """Microseconds of a collective by each algorithm that can do it on this group."""
    group = Reach.of(topology, ranks)
    kind = moved(kind, topology.device_type)
    if group.ranks < 2 or not group.levels:
        return {Algorithm.DIRECT: min(topology.call_us)}
    return {algorithm: _best_us(algorithm, kind, nbytes, group) for algorithm in _possible(kind, group)}


def library_us(kind: Kind, nbytes: float, ranks: Sequence[int], topology: Topology) -> float:
    """Microseconds of a collective as the library does it: the best of what it chooses among."""
    found = choices(kind, nbytes, ranks, topology)
    return min(us for algorithm, us in found.items() if algorithm in LIBRARY)


def _possible(kind: Kind, group: Reach) -> list[Algorithm]:
    found = [Algorithm.RING] if kind in _RINGS else [Algorithm.DIRECT]
    if kind in _TREES:
        found.append(Algorithm.TREE)
    top = group.levels[-1]
    if top.peer_access and kind in (*_REDUCING, Kind.ALL_GATHER):
        found.append(Algorithm.ONE_SHOT)
        found += [Algorithm.TWO_SHOT] if kind is Kind.ALL_REDUCE else []
        found += [Algorithm.MULTICAST] if top.multicast else []
    if len(group.levels) > 1 and kind in (*_REDUCING, Kind.ALL_GATHER):
        found.append(Algorithm.HIERARCHICAL)
    return found


_SETS_UP_ITSELF = frozenset({Algorithm.ONE_SHOT, Algorithm.TWO_SHOT, Algorithm.MULTICAST})


def _best_us(algorithm: Algorithm, kind: Kind, nbytes: float, group: Reach) -> float:
    formula = FORMULAS[algorithm]
    if algorithm is Algorithm.DIRECT and kind is not Kind.ALL_TO_ALL:
        formula = _pairwise
    if algorithm in _SETS_UP_ITSELF:
        return formula(kind, nbytes, group, -1)
    calls = group.topology.call_us
    return min(call + formula(kind, nbytes, group, way) for way, call in enumerate(calls))
