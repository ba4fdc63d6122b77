"""Which collectives may become one, given all that have been merged already: `GraphView.merges()`.

Merging contracts nodes of the dependence graph, and a set of merges can be carried out exactly when the contracted
graph has no cycle. That covers a member that depends on another one, one that does so through another bucket, and
buckets of different kinds that would wait for each other (a before b and c before d with {a, d} and {b, c}).

The planner keeps the groups in an order in which they could run. A merge looks only at the groups that stand between
its members in that order, so a bucket of neighbours costs little however large the graph is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch.fx import Node

from counterpoint.errors import GraphError
from counterpoint.ir.reason import Refusal


@dataclass(eq=False)
class _Group:
    """Collectives that are to become one."""

    members: list[int]
    mask: int
    """The members as bits."""
    needs: int
    """The collectives that must have started before any member can, as bits."""
    place: int
    """Its place in the running order; places have gaps."""
    before: _Group | None = field(default=None, repr=False)
    after: _Group | None = field(default=None, repr=False)


class MergePlanner:
    """Grows sets of collectives that are to be merged, and refuses what would close a cycle. Changes nothing."""

    def __init__(self, starts: Sequence[Node], needs: Sequence[int]) -> None:
        self._starts = tuple(starts)
        self._number = {start: k for k, start in enumerate(self._starts)}
        self._group = [_Group([k], 1 << k, bits, k) for k, bits in enumerate(needs)]
        for left, right in zip(self._group, self._group[1:], strict=False):
            left.after, right.before = right, left

    def try_merge(self, collectives: Iterable[Node]) -> Refusal | None:
        """Merge these starts, with all that they are merged with already. On refusal nothing is changed."""
        found = {id(group): group for group in map(self._group_of, collectives)}
        chosen = sorted(found.values(), key=lambda group: group.place)
        if len(chosen) < 2:
            return None
        region = list(_span(chosen[0], chosen[-1]))
        ahead = self._must_precede(region, chosen)
        if isinstance(ahead, Refusal):
            return ahead
        self._contract(region, chosen, ahead)
        return None

    def group(self, start: Node) -> tuple[Node, ...]:
        """The starts that this one is merged with, itself included, in graph order."""
        return tuple(self._starts[k] for k in sorted(self._group_of(start).members))

    def groups(self) -> tuple[tuple[Node, ...], ...]:
        """All groups, single ones too, in an order in which they can run."""
        first = min(self._group, key=lambda group: group.place, default=None)
        return tuple(self.group(self._starts[group.members[0]]) for group in _span(first, None))

    def _group_of(self, start: Node) -> _Group:
        try:
            return self._group[self._number[start]]
        except KeyError:
            raise GraphError("the node does not start a collective of this view", where=f"node {start.name}") from None

    def _must_precede(self, region: list[_Group], chosen: list[_Group]) -> set[int] | Refusal:
        """The groups between the chosen ones that these need, by id. Walks back through the running order once."""
        picked = {id(group) for group in chosen}
        needed, ahead = 0, set[int]()
        for group in reversed(region):
            is_needed = bool(needed & group.mask)
            if id(group) in picked and is_needed:
                return self._refuse(group, chosen)
            if is_needed:
                ahead.add(id(group))
            if is_needed or id(group) in picked:
                needed |= group.needs
        return ahead

    def _contract(self, region: list[_Group], chosen: list[_Group], ahead: set[int]) -> None:
        picked = {id(group) for group in chosen}
        places = [group.place for group in region]
        edge, beyond = region[0].before, region[-1].after
        merged = max(chosen, key=lambda group: len(group.members))
        for group in chosen:
            if group is not merged:
                merged.members += group.members
                merged.mask |= group.mask
                merged.needs |= group.needs
                for k in group.members:
                    self._group[k] = merged
        first = [group for group in region if id(group) in ahead]
        rest = [group for group in region if id(group) not in ahead and id(group) not in picked]
        # Nothing in `rest` is needed by `first` or by the merged group, and nothing in `first` needs these.
        _relink(edge, [*first, merged, *rest], beyond, places)

    def _refuse(self, group: _Group, chosen: list[_Group]) -> Refusal:
        name = self._starts[group.members[0]].name
        others = [self._starts[k].name for other in chosen for k in other.members if other is not group]
        direct = any(other.needs & group.mask for other in chosen)
        how = "directly" if direct else "through other merged collectives"
        return Refusal("merge-cycle", name, f"one of {', '.join(others[:4])} depends on it {how}")


def _span(first: _Group | None, last: _Group | None) -> Iterator[_Group]:
    group = first
    while group is not None:
        yield group
        group = None if group is last else group.after


def _relink(before: _Group | None, groups: list[_Group], after: _Group | None, places: list[int]) -> None:
    """Put these groups between two others, at the first of these places."""
    for group, place in zip(groups, places, strict=False):
        group.place = place
        group.before = before
        if before is not None:
            before.after = group
        before = group
    last = groups[-1]
    last.after = after
    if after is not None:
        after.before = last
