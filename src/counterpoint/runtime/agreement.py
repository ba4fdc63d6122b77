"""Whether all ranks of a group are about to run the same collectives with the same settings, asked over the store.

No collective is used, since ranks that differ would hang in it, and every wait has a deadline. The first rank of the
group leads: the others compare themselves with what it says, it gathers what they found, and all hear the same answer.
That is a few calls to the store for each rank, and as many as there are ranks for the leader.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoint.errors import AgreementError
from counterpoint.ir.launches import Launch
from counterpoint.runtime.store import arrived, ranks_text, short


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What one rank says about a graph that it is about to run."""

    graph: str
    """For messages."""
    settings: Mapping[str, str]
    """What decisions depend on, by name: versions, options, pipeline, measured links."""
    launches: tuple[Launch, ...]
    """The collectives in the group, in order."""

    def packed(self) -> bytes:
        """As it travels."""
        data = {"graph": self.graph, "settings": dict(self.settings), "launches": [x.to_data() for x in self.launches]}
        return zlib.compress(json.dumps(data).encode())

    @staticmethod
    def unpacked(packed: bytes) -> Statement:
        """What another rank says."""
        data = json.loads(zlib.decompress(packed))
        launches = tuple(map(Launch.from_data, data["launches"]))
        return Statement(graph=data["graph"], settings=data["settings"], launches=launches)


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """One group that compares one graph."""

    store: Any
    """A store of torch.distributed, the same for all."""
    topic: str
    """Names this meeting in the store: equal on all its ranks, and used once."""
    ranks: tuple[int, ...]
    rank: int
    graph: str
    within_s: float

    @property
    def leader(self) -> int:
        """The rank that the others compare themselves with."""
        return self.ranks[0]

    @property
    def others(self) -> tuple[int, ...]:
        """All but the leader."""
        return self.ranks[1:]

    def announce(self, own: Statement) -> None:
        """The part that waits for nobody: done for all groups of a graph before the first wait."""
        if self.rank == self.leader:
            self.store.set(self._key("leader"), own.packed())

    def conclude(self, own: Statement) -> None:
        """Wait for the answer; AgreementError on every rank that hears of a difference or of somebody missing."""
        answer = self._lead() if self.rank == self.leader else self._follow(own)
        if answer:
            what, _, next_step = answer.partition("\n")
            raise AgreementError(what, where=f"graph {self.graph}", next_step=next_step or None)

    def _lead(self) -> str:
        said = {rank: self._key(f"rank{rank}") for rank in self.others}
        if arrived(self.store, list(said.values()), self.within_s):
            found = {rank: self._get(key) for rank, key in said.items()}
            complaints = {rank: text for rank, text in found.items() if text}
            answer = _joined(complaints)
        else:
            missing = [rank for rank, key in said.items() if not self.store.check([key])]
            answer = self._missing(missing)
        self.store.set(self._key("answer"), answer)
        return answer

    def _follow(self, own: Statement) -> str:
        if not arrived(self.store, [self._key("leader")], self.within_s):
            return self._missing([self.leader])
        theirs = Statement.unpacked(self.store.get(self._key("leader")))
        self.store.set(self._key(f"rank{self.rank}"), difference(theirs, own, self.leader, self.rank))
        # The leader may have come just before the end of our patience, and has its own for the others.
        if not arrived(self.store, [self._key("answer")], 2 * self.within_s + 10):
            return self._missing([self.leader])
        return self._get(self._key("answer"))

    def _missing(self, ranks: Sequence[int]) -> str:
        return (
            f"{ranks_text(ranks)} did not come to run a graph within {self.within_s:g} s, where rank {self.rank} is "
            f"about to start its collectives in the group of ranks {short(self.ranks)}\n"
            "look at the log of the missing rank: it may have failed, run other code, compiled another number of "
            "graphs, or still be compiling (agreement_s sets how long to wait)"
        )

    def _get(self, key: str) -> str:
        return bytes(self.store.get(key)).decode()

    def _key(self, name: str) -> str:
        return f"counterpoint/agreement/{self.topic}/{name}"


def difference(leader: Statement, own: Statement, leading: int, rank: int) -> str:
    """The first way in which two ranks differ, and after a line break what to do; empty when they agree."""
    for name in sorted({*leader.settings, *own.settings}):
        theirs, ours = (statement.settings.get(name, "none") for statement in (leader, own))
        if theirs != ours:
            return (
                f"rank {rank} compiles with other settings than rank {leading}: {name} is {_cut(ours)} there and "
                f"{_cut(theirs)} here\ngive all ranks the same code, versions, options and measured links"
            )
    for number, (theirs_at, ours_at) in enumerate(zip(leader.launches, own.launches, strict=False)):
        if not theirs_at.matches(ours_at):
            return _differs(leader, own, number, leading, rank)
    if len(leader.launches) != len(own.launches):
        return _differs(leader, own, min(len(leader.launches), len(own.launches)), leading, rank)
    return ""


def _at(launches: Sequence[Launch], number: int) -> str:
    return f"{launches[number]} at node {launches[number].node}" if number < len(launches) else "none"


def _differs(leader: Statement, own: Statement, number: int, leading: int, rank: int) -> str:
    theirs, ours = (_at(statement.launches, number) for statement in (leader, own))
    return (
        f"rank {rank} would run other collectives than rank {leading}: number {number + 1} is {ours} on rank {rank}, "
        f"and {theirs} on rank {leading}\n"
        "make the model, its inputs and what is read while compiling the same on all ranks"
    )


def _joined(complaints: Mapping[int, str]) -> str:
    if not complaints:
        return ""
    first, *rest = sorted(complaints)
    what, _, next_step = complaints[first].partition("\n")
    return f"{what}{f'; so do {ranks_text(rest)}, or likewise' if rest else ''}\n{next_step}"


def _cut(text: str, longest: int = 120) -> str:
    return repr(text if len(text) <= longest else f"{text[:longest]}...")
