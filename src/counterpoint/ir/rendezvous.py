"""Where simulated ranks meet: collectives of a group in their order, and mailboxes for point-to-point messages."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor
from torch.fx import Node

from counterpoint.errors import EvaluationError
from counterpoint.ir.fused_semantics import FUSED_MEANING
from counterpoint.ir.ops import OpSpec
from counterpoint.ir.semantics import BY_RANK, MEANING


class Post(NamedTuple):
    """What one rank brings to a collective."""

    node: Node
    payload: list[Tensor]
    arguments: Mapping[str, Any]


class Promise(NamedTuple):
    """Something that a rank will get."""

    ready: Callable[[], bool]
    take: Callable[[], list[Any]]
    """The results, once ready."""
    describe: Callable[[], str]
    """Whom the rank waits for."""


@dataclass(eq=False)
class _Meeting:
    """One collective of one group."""

    spec: OpSpec
    group: str
    ranks: tuple[int, ...]
    turn: int
    posts: dict[int, Post] = field(default_factory=dict)
    results: dict[int, list[Any]] = field(default_factory=dict)

    def join(self, rank: int, spec: OpSpec, post: Post) -> None:
        """Add a rank; the last one computes everybody's result."""
        for other_rank, other in self.posts.items():
            if (self.spec.kind, len(other.payload)) != (spec.kind, len(post.payload)):
                raise EvaluationError(
                    f"collective {self.turn} of group {self.group} is {self.spec.name} of {len(other.payload)} tensors "
                    f"on rank {other_rank} and {spec.name} of {len(post.payload)} on rank {rank}",
                    where=f"nodes {other.node.name} and {post.node.name}",
                    next_step="all ranks of a group must start the same collectives in the same order",
                )
        self.posts[rank] = post
        if len(self.posts) == len(self.ranks):
            self._compute()

    def _compute(self) -> None:
        posts = [self.posts[rank] for rank in self.ranks]
        fused = FUSED_MEANING.get(self.spec.name)
        try:
            results = self._results(posts) if fused is None else [[r] for r in fused([p.arguments for p in posts])]
        except RuntimeError as problem:
            raise EvaluationError(
                f"{self.spec.name} cannot be evaluated: {problem}", where=f"node {posts[0].node.name}"
            ) from problem
        self.results = dict(zip(self.ranks, results, strict=True))

    def _results(self, posts: list[Post]) -> list[list[Any]]:
        """For each rank what it gets, payload by payload."""
        meaning = MEANING.get(self.spec.kind)
        if meaning is None:
            raise EvaluationError(f"{self.spec.name} has no reference semantics", where=f"node {posts[0].node.name}")
        arguments = dict(posts[0].arguments)
        arguments |= {name: [p.arguments[name] for p in posts] for name in BY_RANK & arguments.keys()}
        if self.spec.reduce_op is not None:
            arguments["reduce_op"] = arguments[self.spec.reduce_op]
        members = [meaning(list(payloads), arguments) for payloads in zip(*(p.payload for p in posts), strict=True)]
        return [[member[i] for member in members] for i in range(len(posts))]

    def describe(self) -> str:
        missing = [rank for rank in self.ranks if rank not in self.posts]
        return f"collective {self.turn} ({self.spec.name}) of group {self.group}, for ranks {missing}"


class Switchboard:
    """Brings together the n-th collective that each rank starts on a group, and messages with their receivers."""

    def __init__(self) -> None:
        # A group is its ranks: members may know it by different names.
        self._meetings: dict[tuple[int, ...], list[_Meeting]] = defaultdict(list)
        self._started: dict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
        self._mail: dict[tuple[int, int, tuple[int, ...], int], deque[Tensor]] = defaultdict(deque)

    def start(self, rank: int, group: str, ranks: tuple[int, ...], spec: OpSpec, post: Post) -> Promise:
        """Post a payload; the promise is the list of this rank's results."""
        turn = self._started[rank, ranks]
        self._started[rank, ranks] += 1
        meetings = self._meetings[ranks]
        if turn == len(meetings):
            meetings.append(_Meeting(spec, group, ranks, turn))
        meeting = meetings[turn]
        meeting.join(rank, spec, post)
        return Promise(lambda: rank in meeting.results, lambda: meeting.results[rank], meeting.describe)

    def send(self, source: int, target: int, ranks: tuple[int, ...], tag: int, message: Tensor) -> None:
        """Leave a message for another rank."""
        self._mail[source, target, ranks, tag].append(message)

    def receive(self, source: int, target: int, ranks: tuple[int, ...], tag: int) -> Promise:
        """The promise of the next message from another rank."""
        box = self._mail[source, target, ranks, tag]
        return Promise(
            lambda: bool(box), lambda: [box.popleft()], lambda: f"a message with tag {tag} from rank {source}"
        )
