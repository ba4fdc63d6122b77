"""Do the graphs of all ranks fit together: one order of collectives in each group, no circle of waiting between groups,
and a receive for every send.

A collective is taken to hold its rank until all ranks of its group have come: stricter than an asynchronous launch, but
launches of two groups in different order do deadlock where both want the same queue. A message is asynchronous, and
only its wait holds the rank.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Graph, GraphModule, Node

from counterpoint.errors import GroupError
from counterpoint.ir import ops
from counterpoint.ir.collective import Payload, read_collective
from counterpoint.ir.metadata import tensors_of
from counterpoint.ir.ops import Kind
from counterpoint.ir.reason import Refusal
from counterpoint.ir.storage import Storage
from counterpoint.ir.verify.finding import Finding
from counterpoint.ir.verify.meaning import graph_of
from counterpoint.ir.verify.sizes import exact
from counterpoint.ir.verify.waits import Waits

Ranks = tuple[int, ...]
"""A group is its ranks: members may know it by different names."""
Channel = tuple[int, int, Ranks, int]
"""Messages from one rank to another, in a group, with a tag."""


@dataclass(frozen=True)
class Launch:
    """A collective, as one rank starts it."""

    node: Node
    group: Ranks
    form: tuple[Any, ...]
    """What all members must agree on."""


@dataclass(frozen=True)
class Message:
    """One end of a message."""

    node: Node
    channel: Channel
    sends: bool
    form: tuple[Any, ...]


@dataclass(frozen=True)
class Arrival:
    """A wait for the nth message of a channel to be sent (or, for a sender, to be received)."""

    node: Node
    channel: Channel
    sends: bool
    turn: int


Event = Launch | Message | Arrival


def verify_ranks(
    graphs_by_rank: Mapping[int, Graph | GraphModule],
    groups: Mapping[str, Sequence[int]] | Mapping[int, Mapping[str, Sequence[int]]],
) -> tuple[Finding, ...]:
    """Compare the communication of all ranks. `groups` is one table for all, or one for each rank."""
    programs = {rank: list(_events(rank, graph_of(graph), groups)) for rank, graph in sorted(graphs_by_rank.items())}
    order = [*_compare_orders(programs), *_compare_messages(programs)]
    # Ranks that do not even start the same collectives will hang for that reason.
    return tuple(order or _deadlock(programs))


def _table(rank: int, groups: Mapping[Any, Any]) -> Mapping[str, Sequence[int]]:
    by_rank = groups.get(rank) if rank in groups else None
    return by_rank if isinstance(by_rank, Mapping) else groups


def _events(rank: int, graph: Graph, groups: Mapping[Any, Any]) -> Iterator[Event]:
    table = _table(rank, groups)
    storage = Storage()
    waits = Waits(storage)
    arrivals: dict[tuple[Node, int], Arrival] = {}
    turns: Counter[tuple[Channel, bool]] = Counter()
    for node in graph.nodes:
        storage.add(node)
        if ops.is_wait(node):
            found = waits.wait(node)
            if isinstance(found, tuple) and found in arrivals:
                yield arrivals[found]
        elif ops.is_collective(node):
            waits.start(node)
            for i, event in enumerate(_start(rank, node, table)):
                yield event
                if isinstance(event, Message):
                    key = (event.channel, event.sends)
                    arrivals[node, i] = Arrival(node, event.channel, event.sends, turns[key])
                    turns[key] += 1


def _start(rank: int, node: Node, table: Mapping[str, Sequence[int]]) -> Iterator[Event]:
    read = read_collective(node)
    if isinstance(read, Refusal) or read.kind is Kind.PEER_MEMORY:
        return
    if not isinstance(read.group.key, str) or read.group.key not in table:
        raise GroupError(
            f"the ranks of group {read.group} are not known",
            where=f"node {node.name} of rank {rank}",
            next_step="give the ranks of every group of the graphs",
        )
    group = tuple(table[read.group.key])
    if read.spec.peer is None:
        # Members of an all-to-all may bring different amounts.
        sizes = () if read.kind is Kind.ALL_TO_ALL else _sizes(read.sent)
        root = ops.argument(node, read.spec.root) if read.spec.root else None
        yield Launch(node, group, (read.kind.value, read.reduce_op, root, read.sent.dtypes, sizes))
        return
    peers, tags = (ops.argument(node, name or "") for name in (read.spec.peer, read.spec.tag))
    kinds = ops.argument(node, "op_list") if read.kind is Kind.P2P_BATCH else [f"i{read.kind.value}"]
    listed = isinstance(peers, (list, tuple))
    rows = zip(kinds, peers if listed else [peers], tags if listed else [tags], read.inputs, strict=True)
    for kind, peer, tag, tensor in rows:
        sends = kind == "isend"
        channel = (rank, peer, group, tag) if sends else (peer, rank, group, tag)
        payload = Payload.of(tensors_of(tensor))
        yield Message(node, channel, sends, (payload.dtypes, _sizes(payload)))


def _sizes(payload: Payload) -> tuple[Any, ...]:
    """The bytes of a payload; nothing for symbolic ones, whose names differ between graphs."""
    size = exact(payload.nbytes)
    return (size,) if isinstance(size, int) else ()


def _compare_orders(programs: Mapping[int, list[Event]]) -> Iterator[Finding]:
    """For each group, its members against the first of them."""
    launches: dict[Ranks, dict[int, list[Launch]]] = {}
    for rank, program in programs.items():
        for event in program:
            if isinstance(event, Launch):
                launches.setdefault(event.group, {}).setdefault(rank, []).append(event)
    for group, by_rank in launches.items():
        members = [rank for rank in group if rank in programs]
        for rank in members[1:]:
            finding = _first_difference(group, members[0], rank, by_rank.get(members[0], []), by_rank.get(rank, []))
            if finding is not None:
                yield finding


def _first_difference(group: Ranks, a: int, b: int, ours: list[Launch], theirs: list[Launch]) -> Finding | None:
    for i in range(max(len(ours), len(theirs))):
        left, right = (row[i] if i < len(row) else None for row in (ours, theirs))
        if left is None or right is None or not _agree(left.form, right.form):
            name = (right or left or ours[0]).node.name
            text = (
                f"collective {i} of group {list(group)} is {_spell(left)} on rank {a} and {_spell(right)} on rank {b}"
            )
            return Finding("order-differs", name, text)
    return None


def _agree(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return a[:-1] == b[:-1] and (not a[-1] or not b[-1] or a[-1] == b[-1])


def _spell(event: Launch | Message | None) -> str:
    if event is None:
        return "nothing"
    return f"{event.node.name} ({', '.join(str(part) for part in event.form if part not in (None, ()))})"


def _compare_messages(programs: Mapping[int, list[Event]]) -> Iterator[Finding]:
    """For each channel, what is sent against what is received."""
    channels: dict[Channel, tuple[list[Message], list[Message]]] = {}
    for program in programs.values():
        for event in program:
            if isinstance(event, Message):
                channels.setdefault(event.channel, ([], []))[0 if event.sends else 1].append(event)
    for (source, target, _, tag), (sent, received) in channels.items():
        if source not in programs or target not in programs:
            continue
        for i in range(max(len(sent), len(received))):
            left, right = (row[i] if i < len(row) else None for row in (sent, received))
            if left is None or right is None or not _agree(left.form, right.form):
                name = (left or right or sent[0]).node.name
                where = f"message {i} with tag {tag} from rank {source} to rank {target}"
                yield Finding("unmatched-message", name, f"{where}: sent {_spell(left)}, received {_spell(right)}")
                break


@dataclass
class _Run:
    """All ranks, each advancing through its program as far as the others let it."""

    programs: Mapping[int, list[Event]]
    place: dict[int, int] = field(default_factory=dict)
    posted: Counter[tuple[Channel, bool]] = field(default_factory=Counter)

    def head(self, rank: int) -> Event | None:
        """What a rank is about to do."""
        program, place = self.programs[rank], self.place.get(rank, 0)
        return program[place] if place < len(program) else None

    def advance(self, rank: int) -> list[int]:
        """Do one step where possible; the ranks that may go on because of it."""
        event = self.head(rank)
        if event is None:
            return []
        if isinstance(event, Launch):
            members = [member for member in event.group if member in self.programs]
            heads = map(self.head, members)
            if not all(isinstance(head, Launch) and head.group == event.group for head in heads):
                return []
            for member in members:
                self.place[member] = self.place.get(member, 0) + 1
            return members
        if isinstance(event, Arrival):
            if self.peer_of(event) in self.programs and self.posted[event.channel, not event.sends] <= event.turn:
                return []
        else:
            self.posted[event.channel, event.sends] += 1
        self.place[rank] = self.place.get(rank, 0) + 1
        return [rank, *(r for r in event.channel[:2] if r in self.programs and r != rank)]

    @staticmethod
    def peer_of(event: Arrival) -> int:
        """The rank at the other end."""
        return event.channel[1] if event.sends else event.channel[0]

    def waits_for(self, rank: int) -> int | None:
        """A rank that this one is stuck behind."""
        event = self.head(rank)
        if isinstance(event, Arrival):
            return self.peer_of(event)
        if not isinstance(event, Launch):
            return None
        others = (member for member in event.group if member in self.programs)
        return next((m for m in others if getattr(self.head(m), "group", None) != event.group), None)


def _deadlock(programs: Mapping[int, list[Event]]) -> Iterator[Finding]:
    run = _Run(programs)
    ready = deque(programs)
    while ready:
        ready.extend(run.advance(ready.popleft()))
    stuck = [rank for rank in programs if run.head(rank) is not None]
    if not stuck:
        return
    trail: list[int] = []
    rank: int | None = stuck[0]
    while rank is not None and rank not in trail:
        trail.append(rank)
        rank = run.waits_for(rank)
    circle = trail[trail.index(rank) :] if rank is not None else trail
    heads = [(r, run.head(r)) for r in circle]
    text = "; ".join(f"rank {r} is at {head.node.name if head else 'the end'}" for r, head in heads)
    first = heads[0][1]
    yield Finding("deadlock", first.node.name if first else "output", f"each waits for the next: {text}")
