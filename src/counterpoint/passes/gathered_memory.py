"""How much gathered memory is alive at once, and whether a bucket may still grow under a bound.

A member of a bucket is gathered when the bucket's first member is, and lives until its own last use. So joining a
bucket makes its result alive earlier, at every gather between the two. This is counted on the order of the graph before
merging; settling can only start a bucket later than assumed here. The packed copy, which lives as long as the results
are taken out of it, is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.passes.bucket_plan import Member


class GatheredMemory:
    """Bytes of gathered results that are alive when each gather starts, given the buckets so far."""

    def __init__(self, view: GraphView, members: Sequence[Member], limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._place = {member.start: place for place, member in enumerate(members)}
        self.alive = [0] * len(members)
        """By place among the members, in graph order."""
        starts = [view.index(member.start) for member in members]
        for place, member in enumerate(members):
            end = last_use(view, member)
            for later in range(place, len(members)):
                if starts[later] > end:
                    break
                self.alive[later] += member.nbytes

    def refuse(self, first: Member, member: Member) -> Refusal | None:
        """Why the member may not be gathered together with the first one of a bucket; None when it may."""
        early = self.alive[self._place[first.start] : self._place[member.start]]
        most = max(early, default=0) + member.nbytes
        if most <= self.limit_bytes:
            return None
        return Refusal("gathered-memory", member.start.name, f"{most} bytes, the bound is {self.limit_bytes}")

    def join(self, first: Member, member: Member) -> None:
        """The member is gathered together with the first one."""
        for place in range(self._place[first.start], self._place[member.start]):
            self.alive[place] += member.nbytes


def last_use(view: GraphView, member: Member) -> int:
    """The index of the last node that uses what the collective gives back, views looked through."""
    users: set[Node] = {user for node in member.block.nodes for user in node.users}
    return max((view.index(user) for user in users), default=view.index(member.wait))
