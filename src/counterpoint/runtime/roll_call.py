"""After a collective has failed: which ranks stand where, asked over the store.

The collectives cannot be used for it, as they are what failed. A rank whose collective fails says where it stands,
hears what the others say within a few seconds, and names those that say nothing. With gloo the failure of one rank
fails its peers at once, so all that wait for the missing rank answer together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from counterpoint.runtime.store import arrived, ranks_text

PATIENCE_S = 5.0
"""How long the ranks that failed wait for each other's word. Comes on top of the group's timeout."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where one rank stands."""

    graph: str
    collective: str
    """Kind, reduction and payload, in words."""
    node: str
    work: str
    """Which collectives of the user's program it does the work of, and where they come from."""
    sequence: int | None
    """How many collectives the rank has started in the group, where its backend counts them."""

    @property
    def text(self) -> str:
        """For messages."""
        return f"{self.collective} at node {self.node} of graph {self.graph}" + (f" ({self.work})" if self.work else "")


@dataclass(frozen=True, kw_only=True)
class Roll:
    """What came of asking."""

    own: Standing
    rank: int
    others: Mapping[int, Standing]
    missing: tuple[int, ...]
    store_gone: bool = False
    """The store does not answer: the process that holds it has ended."""

    @property
    def what(self) -> str:
        """Who is missing where, or who stands elsewhere."""
        if self.store_gone:
            return (
                f"{self.own.text} failed on rank {self.rank}, and the store does not answer: the process that holds it "
                "has ended, usually rank 0"
            )
        if self.missing:
            there = sorted([self.rank, *(rank for rank, found in self.others.items() if found.node == self.own.node)])
            wait = "wait" if len(there) > 1 else "waits"
            return f"{ranks_text(self.missing)} did not come to {self.own.text}, where {ranks_text(there)} {wait}"
        elsewhere = self._elsewhere()
        if elsewhere:
            told = "; ".join(f"rank {rank} stands in {self._place(rank)}" for rank in elsewhere[:3])
            return f"ranks wait for each other in different collectives: rank {self.rank} in {self.own.text}; {told}"
        return f"all ranks are in {self.own.text}, and the network between them failed"

    @property
    def next_step(self) -> str:
        """Where to look."""
        if self.missing and not self.store_gone:
            return (
                f"look at the log of {ranks_text(self.missing)}: it has ended, is stuck outside of compiled graphs, or "
                "took another way through the program (py-spy dump --pid PID shows where it is)"
            )
        if not self.store_gone and self._elsewhere():
            return "make all ranks run the same graphs in the same order: the same batches, branches and errors"
        return "look at the logs of all ranks: the one that failed first knows why"

    def _elsewhere(self) -> list[int]:
        """Ranks in another collective, or in the same one of an earlier or later step."""
        own = (self.own.collective, self.own.sequence)
        return [rank for rank, found in sorted(self.others.items()) if (found.collective, found.sequence) != own]

    def _place(self, rank: int) -> str:
        found = self.others[rank]
        if None in (found.sequence, self.own.sequence) or found.sequence == self.own.sequence:
            return found.text
        return f"{found.text}, its number {found.sequence} in the group, where rank {self.rank} has {self.own.sequence}"


def call_roll(store: Any, ranks: tuple[int, ...], rank: int, own: Standing, within_s: float = PATIENCE_S) -> Roll:
    """Tell the ranks of a group where this one stands, and hear where they stand."""
    topic = f"counterpoint/roll/{hashlib.sha256(str(ranks).encode()).hexdigest()}"
    others = [other for other in ranks if other != rank]
    try:
        store.set(f"{topic}/{rank}", json.dumps(asdict(own)))
        arrived(store, [f"{topic}/{other}" for other in others], within_s)
        there = [other for other in others if store.check([f"{topic}/{other}"])]
        said = {other: Standing(**json.loads(bytes(store.get(f"{topic}/{other}")))) for other in there}
    except RuntimeError:
        return Roll(own=own, rank=rank, others={}, missing=(), store_gone=True)
    return Roll(own=own, rank=rank, others=said, missing=tuple(other for other in others if other not in said))
