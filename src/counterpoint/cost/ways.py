"""In which ways a collective can be done on a group, what each takes, and which is best.

Pure: the answer follows from payload, group, costs and what the ranks have found out together, so it is the same on all
of them. A way that cannot be taken says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch

from counterpoint.cost import network
from counterpoint.cost.capabilities import Capabilities, members_by_host
from counterpoint.cost.model import CostModel
from counterpoint.cost.network import Algorithm
from counterpoint.cost.presets import topology
from counterpoint.cost.shared_memory import (
    HostMemory,
    all_gather_us,
    host_memory,
    one_shot_us,
    reduce_scatter_us,
    supports,
    two_shot_us,
)
from counterpoint.cost.symmetric_memory import torch_all_reduce_obstacle
from counterpoint.cost.topology import Topology
from counterpoint.ir.ops import Kind

MOVED = (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
"""What can be done otherwise than by the library."""
SPARE = 2
"""From how many processors a rank messages travel beside its compute; below, they take turns with it."""
CONTENTION = 0.12
"""What a library's kernels take from compute beside them: some 16 of the 132 multiprocessors of an H100."""
NODE = "h200x8-ib400"
"""The topology by which one-shot, two-shot and multicast are compared where none is described."""


class Way(Enum):
    """How a collective is done."""

    LIBRARY = "library"
    """As the communication library does it."""
    ONE_SHOT = "one-shot"
    """Every rank reads what all others have."""
    TWO_SHOT = "two-shot"
    """Every rank reduces a part, then collects the others' parts."""
    MULTICAST = "multicast"
    """The switch adds up and copies."""
    SHARED = "shared memory"
    """A gather or a scatter through memory that the ranks of a host share."""
    COPY_ENGINE = "copy engine"
    """Transfers that leave the multiprocessors to compute."""
    HIERARCHICAL = "hierarchical"
    """Inside the hosts, across them, and inside again."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A collective, as far as the ways of doing it go."""

    kind: Kind
    nbytes: tuple[int, ...]
    """Of each tensor as a whole: what a gather receives and what a reduce-scatter is given."""
    dtypes: tuple[torch.dtype, ...]
    ranks: tuple[int, ...]
    device_type: str
    reduce_op: str = "sum"
    beside_us: float = 0.0
    """Compute between its start and its wait, which does not need it."""

    @property
    def total(self) -> int:
        """Bytes of all tensors."""
        return sum(self.nbytes)


@dataclass(frozen=True)
class Ways:
    """What each way would keep the program waiting, in microseconds, and why others cannot be taken."""

    waits_us: Mapping[Way, float]
    obstacles: Mapping[Way, str] = field(default_factory=dict)

    @property
    def best(self) -> Way:
        """The quickest; the library where nothing is quicker."""
        return min(self.waits_us, key=lambda way: (self.waits_us[way], way is not Way.LIBRARY))

    @property
    def library_us(self) -> float:
        """What the library would take."""
        return self.waits_us[Way.LIBRARY]


def ways(call: Call, found: Capabilities, model: CostModel) -> Ways:
    """All ways of doing a collective."""
    library = model.collective_us(call.kind, call.total, call.ranks, device_type=call.device_type)
    on_host = call.device_type == "cpu"
    times = {Way.LIBRARY: _behind(call, library, found)}
    obstacles: dict[Way, str] = {}
    if call.kind not in MOVED:
        return Ways(times, {Way.SHARED: f"there is no other form of {call.kind.value}"})
    (_shared if on_host else _symmetric)(call, found, model, times, obstacles)
    _hierarchical(call, found, model, times, obstacles)
    return Ways(times, obstacles)


def _behind(call: Call, library_us: float, found: Capabilities) -> float:
    """What is left of a library's collective behind the compute beside it."""
    if call.device_type == "cpu":
        crowded = 0 < found.processors < SPARE * len(call.ranks)
        return library_us if crowded else max(0.0, library_us - call.beside_us)
    hidden = min(library_us, call.beside_us)
    return library_us - hidden + CONTENTION * hidden


def _shared(
    call: Call, found: Capabilities, model: CostModel, times: dict[Way, float], obstacles: dict[Way, str]
) -> None:
    """The ranks of one host, on their processors."""
    ways_of = (Way.ONE_SHOT, Way.TWO_SHOT) if call.kind is Kind.ALL_REDUCE else (Way.SHARED,)
    obstacle = None if found.shared_memory else found.shared_memory.reason
    obstacle = obstacle or unsupported(call)
    if obstacle is not None:
        obstacles.update(dict.fromkeys(ways_of, obstacle))
        return
    host = host_memory(len(call.ranks), found.processors or len(call.ranks))
    for way in ways_of:
        times[way] = sum(shared_us(way, call.kind, nbytes, len(call.ranks), host) for nbytes in call.nbytes)


def unsupported(call: Call) -> str | None:
    """Why the kernels of shared memory cannot reduce this."""
    if call.kind is Kind.ALL_GATHER:
        return None
    lacking = [dtype for dtype in call.dtypes if not supports(dtype, call.reduce_op)]
    return f"the kernels have no {call.reduce_op} of {str(lacking[0]).removeprefix('torch.')}" if lacking else None


def shared_us(way: Way, kind: Kind, nbytes: float, ranks: int, host: HostMemory) -> float:
    """One tensor through the memory of a host."""
    if kind is Kind.ALL_REDUCE:
        return (two_shot_us if way is Way.TWO_SHOT else one_shot_us)(nbytes, ranks, host)
    if kind is Kind.ALL_GATHER:
        return all_gather_us(nbytes / ranks, ranks, host)
    return reduce_scatter_us(nbytes, ranks, host)


def node_topology(model: CostModel) -> Topology:
    """By what the links inside a node are reckoned."""
    return model.topology if model.topology is not None else topology(NODE)


def _symmetric(
    call: Call, found: Capabilities, model: CostModel, times: dict[Way, float], obstacles: dict[Way, str]
) -> None:
    """Devices that reach each other's memory."""
    kind, reduces = call.kind, call.kind is Kind.ALL_REDUCE
    ways_of = (Way.ONE_SHOT, Way.TWO_SHOT, Way.MULTICAST) if reduces else (Way.COPY_ENGINE,)
    obstacle = None if found.symmetric_memory else found.symmetric_memory.reason
    if obstacle is None and reduces:
        obstacle = torch_all_reduce_obstacle(dtypes=call.dtypes, nbytes=call.nbytes, reduce_op=call.reduce_op)
    if obstacle is None and kind is Kind.REDUCE_SCATTER and call.reduce_op not in ("sum", "avg"):
        obstacle = f"torch scatters sums and averages, not {call.reduce_op}"
    if obstacle is not None:
        obstacles.update(dict.fromkeys(ways_of, obstacle))
        return
    if not reduces:
        times[Way.COPY_ENGINE] = _copied_us(call, node_topology(model))
        return
    for way in ways_of:
        us = peer_us(way, call, node_topology(model))
        if way is Way.MULTICAST and not found.multicast:
            obstacles[way] = found.multicast.reason
        elif us is not None:
            times[way] = us


_ALGORITHMS: Mapping[Way, Algorithm] = {
    Way.ONE_SHOT: Algorithm.ONE_SHOT,
    Way.TWO_SHOT: Algorithm.TWO_SHOT,
    Way.MULTICAST: Algorithm.MULTICAST,
}


def peer_us(way: Way, call: Call, cluster: Topology) -> float | None:
    """An all-reduce by devices that read each other's memory; None where they do not on this topology."""
    each = [network.choices(call.kind, nbytes, call.ranks, cluster).get(_ALGORITHMS[way]) for nbytes in call.nbytes]
    return None if None in each else sum(us for us in each if us is not None)


def _copied_us(call: Call, cluster: Topology) -> float:
    """Every rank pulls the others' parts one after the other, and nothing of it stands in the way of compute."""
    reach = network.Reach.of(cluster, call.ranks)
    link = reach.levels[0].link if reach.levels else cluster.levels[0].link
    share = 1 - 1 / len(call.ranks)
    pulls = (len(call.ranks) - 1) * link.latency_us + call.total * share * 8 / (link.bandwidth_gbps * 1e3)
    return max(0.0, network.PEER_CALL_US + pulls - call.beside_us)


def _hierarchical(
    call: Call, found: Capabilities, model: CostModel, times: dict[Way, float], obstacles: dict[Way, str]
) -> None:
    """Groups that span hosts of several ranks each."""
    obstacle = refuse_hierarchy(call, found.hosts)
    if obstacle is not None:
        obstacles[Way.HIERARCHICAL] = obstacle
        return
    members = members_by_host(found.hosts) or 1
    if model.topology is not None and call.device_type != "cpu":
        us = network.choices(call.kind, call.total, call.ranks, model.topology).get(Algorithm.HIERARCHICAL)
        if us is not None:
            times[Way.HIERARCHICAL] = us
        return
    if call.device_type == "cpu":
        times[Way.HIERARCHICAL] = sum(_two_level_us(call, nbytes, members, found, model) for nbytes in call.nbytes)


def refuse_hierarchy(call: Call, hosts: Sequence[int]) -> str | None:
    """Why a collective cannot be done inside the hosts and then across them."""
    members = members_by_host(hosts)
    if members is None:
        return "the ranks do not lie on several hosts of equally many ranks each, host by host"
    if call.device_type == "cpu" and unsupported(call) is not None:
        return unsupported(call)
    return None


def _two_level_us(call: Call, nbytes: int, members: int, found: Capabilities, model: CostModel) -> float:
    """Inside a host through its memory, between hosts by the library, a share of the data for each member.

    The members' shares travel at once, over one network card as a rule, so together they take what all of it takes.
    """
    outer = call.ranks[::members]
    host = host_memory(members, found.processors or members)
    across = model.collective_us(call.kind, nbytes, outer, device_type=call.device_type)
    inside = 0.0
    if call.kind is not Kind.ALL_GATHER:
        inside += reduce_scatter_us(nbytes, members, host)
    if call.kind is not Kind.REDUCE_SCATTER:
        inside += all_gather_us(nbytes / members, members, host)
    return across + inside


def way_of(operator: str) -> Way | None:
    """The way that one of our operators is, in any form; None for those that choose when they run, and for others."""
    return _OPERATORS.get(operator.removesuffix("_out").removesuffix("_"))


def operator_us(operator: str, call: Call, model: CostModel) -> float:
    """What one of our operators takes, where it runs."""
    way = way_of(operator)
    if way is Way.HIERARCHICAL:
        kind, ranks, device = call.kind, call.ranks, call.device_type
        return model.collective_us(kind, call.total, ranks, device_type=device, algorithm=Algorithm.HIERARCHICAL)
    tried = (way,) if way is not None else (Way.ONE_SHOT, Way.TWO_SHOT)
    if call.device_type == "cpu":
        size = len(call.ranks)
        return min(shared_us(each, call.kind, call.total, size, host_memory(size, size)) for each in tried)
    found = [us for each in tried if each in _ALGORITHMS and (us := peer_us(each, call, node_topology(model)))]
    return min(found) if found else model.collective_us(call.kind, call.total, call.ranks)


_OPERATORS: Mapping[str, Way] = {
    "counterpoint::shm_one_shot_all_reduce": Way.ONE_SHOT,
    "counterpoint::shm_two_shot_all_reduce": Way.TWO_SHOT,
    "counterpoint::shm_multicast_all_reduce": Way.MULTICAST,
    "counterpoint::shm_all_gather": Way.SHARED,
    "counterpoint::shm_reduce_scatter": Way.SHARED,
    "counterpoint::hierarchical_all_reduce": Way.HIERARCHICAL,
    "counterpoint::hierarchical_all_gather": Way.HIERARCHICAL,
    "counterpoint::hierarchical_reduce_scatter": Way.HIERARCHICAL,
}
