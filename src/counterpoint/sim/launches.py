"""What a rank launches, in order, and with whom: read from its graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch.fx import Graph, GraphModule, Node

from counterpoint.cost.model import collective_bytes
from counterpoint.ir import ops
from counterpoint.ir.collective import Collective, read_collective
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.ops import Kind

_ANY_SIZE = frozenset({Kind.ALL_TO_ALL, Kind.P2P_BATCH, Kind.PEER_MEMORY, Kind.SEND, Kind.RECV})
"""Kinds whose payload may differ from rank to rank."""


@dataclass(frozen=True)
class Meeting:
    """Ranks that must come together: a whole group, or the two ends of a message."""

    ranks: tuple[int, ...]
    """Global ranks; of a message the sender and then the receiver."""
    message: bool = False
    tag: int = 0


@dataclass(frozen=True)
class Launch:
    """A collective as one rank launches it, or messages that it launches together."""

    node: str
    group: str
    kind: Kind
    meetings: tuple[Meeting, ...]
    """All must take place before the rank goes on."""
    nbytes: int | None = None
    """Where every rank must bring as many."""


def launches_of(graph: Graph | GraphModule, groups: GroupTable, rank: int, world_size: int) -> tuple[Launch, ...]:
    """What one rank launches, in order. Behind a name it sees its own group, where the table holds another rank's."""
    nodes = (graph.graph if isinstance(graph, GraphModule) else graph).nodes
    reader = _Reader(groups, rank, world_size)
    return tuple(launch for node in nodes if ops.is_collective(node) for launch in reader.read(node))


class _Reader:
    def __init__(self, groups: GroupTable, rank: int, world_size: int) -> None:
        self._groups, self._rank, self._world_size = groups, rank, world_size
        self._seen: dict[str | None, tuple[int, ...]] = {}

    def read(self, node: Node) -> Iterator[Launch]:
        collective = read_collective(node)
        if not isinstance(collective, Collective):
            return
        kind, ranks = collective.kind, self._ranks(collective.group.name)
        sized = kind not in _ANY_SIZE
        yield Launch(
            node=node.name,
            group=str(collective.group),
            kind=kind,
            meetings=tuple(self._messages(collective, ranks)) if _is_message(collective) else (Meeting(ranks),),
            nbytes=collective_bytes(collective) if sized else None,
        )

    def _ranks(self, name: str | None) -> tuple[int, ...]:
        found = self._seen.get(name)
        if found is None:
            known = name is not None and name in self._groups
            found = self._seen[name] = (
                tuple(self._groups.seen_from(self._rank, name, self._world_size))
                if name is not None and known
                else tuple(range(self._world_size))
            )
        return found

    def _messages(self, collective: Collective, ranks: tuple[int, ...]) -> Iterator[Meeting]:
        node, spec = collective.start, collective.spec
        peers, tags = (ops.argument(node, name or "") for name in (spec.peer, spec.tag))
        sends = [collective.kind is Kind.SEND]
        if spec.coalesced:
            sends = [what == "isend" for what in ops.argument(node, "op_list")]
        else:
            peers, tags = [peers], [tags]
        for send, peer, tag in zip(sends, peers, tags, strict=True):
            other = ranks[peer] if 0 <= peer < len(ranks) else peer
            ends = (self._rank, other) if send else (other, self._rank)
            yield Meeting(ends, message=True, tag=tag)


def _is_message(collective: Collective) -> bool:
    return collective.kind in (Kind.SEND, Kind.RECV, Kind.P2P_BATCH)
