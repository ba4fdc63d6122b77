"""Whether computing a matmul in parts pays, into how many parts, and what is left to plain overlap.

Everything here is a pure function of sizes, links and processors, so all ranks decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import log2
from types import MappingProxyType
from typing import NamedTuple

from torch.fx import Node

from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.passes.micro_pipeline.products import is_matmul


class SplitLoss(NamedTuple):
    """By how much a matmul takes longer in parts, beside the communication that stays in sight."""

    of_two: float
    """As a part of its time, in two parts."""
    a_doubling: float = 0.0
    """What every further doubling of the number of parts adds."""
    a_piece_us: float = 0.0

    def of(self, compute_us: float, pieces: int) -> float:
        """The microseconds that are lost."""
        share = self.of_two + self.a_doubling * max(0.0, log2(pieces / 2))
        return share * compute_us + pieces * self.a_piece_us


class Parts(NamedTuple):
    """What is known of matmuls in parts on a kind of device."""

    chunks: tuple[int, ...]
    """Into how many pieces each rank's part may be cut."""
    sure: float
    """Which part of the time must be estimated to be gained: estimates are off by as much."""
    gathered: SplitLoss
    """What is lost where parts are multiplied as they arrive."""
    reduced: SplitLoss
    """What is lost where parts are sent as they are computed, and added up."""


PARTS: Mapping[str, Parts] = MappingProxyType(
    {
        # One H200 under MPS, torch 2.11, two and four ranks, six products each (our measurement, docs/measures). Parts
        # that are added up lost 0.20 with two ranks and 0.46 with four at most. More than one chunk gained up to 5 %
        # and lost up to 67 %. More ranks than four follow the same line; nobody has measured them.
        "cuda": Parts((1,), 0.05, SplitLoss(0.1, 0.03, a_piece_us=30), SplitLoss(0.2, 0.26)),
        # One thread, torch 2.13: products of 512 to 2048 squared in four parts took 1 to 3 % longer (our measurement).
        # Processors do other things too, so their times vary more.
        "cpu": Parts((1, 2, 4, 8), 0.1, SplitLoss(0.03), SplitLoss(0.03)),
    }
)
"""By device type; others are taken for the first."""

WINDOW = 128
"""How many nodes before and behind a collective are looked at for compute that could hide it. What lies further away
would have to be moved past so much that its operands or results live too long."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a rewrite would overlap."""

    communication_us: float
    latency_us: float
    """The part of it that every further call takes again."""
    compute_us: float
    launch_us: float
    """What every further piece keeps the compute stream from computing."""
    pieces: int
    """Into how many pieces the operator cuts the work with one chunk."""
    device_type: str
    gathers: bool
    """Parts are multiplied as they arrive; otherwise they are sent as they are computed."""

    @property
    def parts(self) -> Parts:
        """What is known of parts on its device."""
        return PARTS.get(self.device_type, PARTS["cuda"])


def pipelined_us(work: Work, chunks: int) -> float:
    """The time of a pipelined operator: the longer of the two, and the other's first or last piece beside it."""
    pieces = work.pieces * chunks
    loss = work.parts.gathered if work.gathers else work.parts.reduced
    compute = work.compute_us + loss.of(work.compute_us, pieces)
    # The pieces of one chunk travel at once; further chunks are calls of their own.
    communication = work.communication_us + (chunks - 1) * work.latency_us
    beside = min(compute, communication) / pieces
    return max(compute, communication) + beside + pieces * work.launch_us


def choose_chunks(work: Work) -> tuple[int, float]:
    """The best number of chunks, the fewest where several are as good, and the microseconds it gains."""
    apart = work.communication_us + work.compute_us
    best = min(work.parts.chunks, key=lambda chunks: pipelined_us(work, chunks))
    return best, apart - pipelined_us(work, best)


def refuse_small(start: Node, work: Work, gain_us: float) -> Refusal | None:
    """Why the parts would not pay; None where they do."""
    needed_us = work.parts.sure * (work.communication_us + work.compute_us)
    if gain_us > needed_us:
        return None
    what = f"{work.communication_us:.0f} us of communication, {work.compute_us:.0f} us of matmul"
    comes_to = f"{-gain_us:.0f} us lost" if gain_us <= 0 else f"{gain_us:.0f} us gained, too few to be sure"
    return Refusal("too-small", start.name, f"{what}: {comes_to}")


@dataclass
class Hiding:
    """Independent compute that plain overlap could put behind collectives; each matmul hides something once."""

    view: GraphView
    node_us: Callable[[Node], float]
    _left: dict[Node, float] = field(default_factory=dict)

    def refuse(self, start: Node, wait: Node, needed_us: float) -> Refusal | None:
        """Why the collective is left to plain overlap; None where too little compute is independent of it."""
        found, chosen = 0.0, dict[Node, float]()
        for node in self._independent(start, wait):
            has = self._left.setdefault(node, self.node_us(node))
            if has > 0 and found < needed_us:
                chosen[node] = min(has, needed_us - found)
                found += chosen[node]
        if found < needed_us:
            return None
        for node, used in chosen.items():
            self._left[node] -= used
        names = ", ".join(node.name for node in chosen)
        return Refusal("hidden-anyway", start.name, f"{needed_us:.0f} us behind {names}")

    def _independent(self, start: Node, wait: Node) -> Iterable[Node]:
        """The matmuls near the collective that neither need it nor are needed by it."""
        first = max(0, self.view.index(start) - WINDOW)
        last = min(len(self.view.nodes), self.view.index(wait) + WINDOW)
        near = [node for node in self.view.nodes[first:last] if is_matmul(node)]
        before = self._needed_by(start, first) if near else frozenset()
        return [node for node in near if node not in before and not self.view.depends(node, start)]

    def _needed_by(self, start: Node, first: int) -> frozenset[Node]:
        """What the start needs, as far back as the window goes."""
        seen: set[Node] = set()
        frontier = [start]
        while frontier:
            for source in self.view.predecessors(frontier.pop()):
                if source not in seen and self.view.index(source) >= first:
                    seen.add(source)
                    frontier.append(source)
        return frozenset(seen)
