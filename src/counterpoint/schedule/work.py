"""What each node of a graph has to do, before any order or clock: read once, then played by the simulator and bounded.

A collective that is waited for works on its channel, and its launch on the compute stream. One that needs no wait is a
kernel like any other and works on the compute stream, as do the fused ones, whose communication and product overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch.fx import Graph, Node

from counterpoint.cost.fused import FUSED, fused_work, overlapped_us
from counterpoint.cost.model import CostModel, collective_bytes
from counterpoint.cost.network import Algorithm
from counterpoint.cost.ways import Call, operator_us
from counterpoint.errors import CounterpointError
from counterpoint.ir import hierarchical, ops, shared_memory
from counterpoint.ir.alias import waits_of
from counterpoint.ir.collective import Collective, read_collective
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.ops import Kind


@dataclass(frozen=True)
class Work:
    """What one node does, in microseconds."""

    node: Node
    compute_us: float = 0.0
    """On the compute stream."""
    kind: str = "compute"
    channel: str | None = None
    """Where a collective works, if not on the compute stream."""
    network_us: float = 0.0
    nbytes: int = 0
    waits_for: Node | None = None
    """The start whose result this wait completes."""
    shares: str | None = None
    """The level of the topology whose links the collective uses; collectives of one level may share them."""
    known: bool = True


def read_work(graph: Graph, model: CostModel, groups: GroupTable) -> tuple[Work, ...]:
    """The work of all nodes, in graph order."""
    started: dict[Node, Node] = {}
    found = []
    for node in graph.nodes:
        if ops.is_collective(node):
            found.append(_start(node, model, groups))
            started.update(dict.fromkeys(waits_of(node), node))
        elif ops.is_wait(node):
            found.append(Work(node, kind="wait", waits_for=started.get(node)))
        else:
            us = model.node_us(node)
            found.append(Work(node, compute_us=us or 0.0, known=us is not None))
    return tuple(found)


def _start(node: Node, model: CostModel, groups: GroupTable) -> Work:
    try:
        collective = read_collective(node)
    except CounterpointError:
        return Work(node, kind="collective", known=False)
    if not isinstance(collective, Collective):
        return Work(node, kind="collective", known=False)
    ranks = ranks_of(collective, groups)
    if collective.kind in FUSED:
        return _fused(node, collective.kind, model, ranks)
    nbytes = collective_bytes(collective)
    known, size, kind = nbytes is not None, nbytes or 0, collective.kind.value
    device = collective.sent.devices[0].type if collective.sent.devices else None
    if collective.spec.name in OURS:
        call = Call(
            kind=collective.kind,
            nbytes=(size,),
            dtypes=collective.sent.dtypes,
            ranks=tuple(ranks),
            device_type=device or model.device_type,
        )
        return Work(
            node, compute_us=operator_us(collective.spec.name, call, model), kind=kind, nbytes=size, known=known
        )
    algorithm = _FORCED.get(collective.spec.name)
    us = model.collective_us(collective.kind, size, ranks, device_type=device, algorithm=algorithm)
    if not collective.spec.waits:
        return Work(node, compute_us=us, kind=kind, nbytes=size, known=known)
    return Work(
        node,
        compute_us=model.start_cost_us(device) if len(ranks) > 1 else 0.0,
        kind=kind,
        channel=model.channel_of(collective.group),
        network_us=us,
        nbytes=size,
        shares=model.topology.level_of(ranks).name if model.topology is not None else "network",
        known=known,
    )


def _fused(node: Node, kind: Kind, model: CostModel, ranks: Sequence[int]) -> Work:
    work = fused_work(node, len(ranks))
    if work is None:
        return Work(node, kind="pipelined", known=False)
    network_us = model.collective_us(kind, work.nbytes, ranks)
    product_us = model.processor().arithmetic_us(work.flop, work.dtype)
    us = overlapped_us(network_us, product_us, len(ranks))
    return Work(node, compute_us=us, kind="pipelined", nbytes=work.nbytes)


def ranks_of(collective: Collective, groups: GroupTable) -> Sequence[int]:
    """The ranks of a collective's group; neighbours counted from 0 where the table does not tell."""
    name = collective.group.name
    if name is not None and name in groups:
        return groups[name]
    if collective.kind in (Kind.SEND, Kind.RECV, Kind.P2P_BATCH):
        return range(2)
    return range(collective.group.size or 2)


_FORCED: Mapping[str, Algorithm] = MappingProxyType(
    {f"symm_mem::one_shot_all_reduce{suffix}": Algorithm.ONE_SHOT for suffix in ("", "_out", "_copy", "_copy_out")}
    | {f"symm_mem::two_shot_all_reduce{suffix}": Algorithm.TWO_SHOT for suffix in ("_", "_out")}
    | {
        "symm_mem::multimem_all_reduce_": Algorithm.MULTICAST,
        "symm_mem::multimem_one_shot_all_reduce": Algorithm.MULTICAST,
        "symm_mem::multimem_one_shot_all_reduce_out": Algorithm.MULTICAST,
        "symm_mem::multimem_all_gather_out": Algorithm.MULTICAST,
        "symm_mem::_low_contention_all_gather": Algorithm.ONE_SHOT,
        "symm_mem::_low_contention_reduce_scatter": Algorithm.ONE_SHOT,
    }
)
"""Operators that are one algorithm, where the others leave the choice to a library."""

OURS = frozenset({*shared_memory.NAMES.values(), *hierarchical.NAMES.values()})
"""Operators in memory that ranks share, or by hosts: complete when they return."""
