"""The operators of `ir/hierarchical.py`: inside each host through its memory, between hosts by the library.

The first call for a group makes its parts: a group for the ranks of each host, and one for the ranks of equal place on
all hosts. All ranks of the group make that call together, as any collective, and each makes its own two parts with the
other members alone, first the one inside; so nobody waits for a rank that does not come.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint._torch import group_timeout_s, process_group
from counterpoint.cost.capabilities import members_by_host
from counterpoint.cost.shared_memory import supports
from counterpoint.errors import GroupError
from counterpoint.ir.hierarchical import NAMES
from counterpoint.runtime import shared_memory
from counterpoint.runtime.locks import Locks
from counterpoint.runtime.probe import hosts_of

OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}
"""An average is a sum, divided at the end: once, as the library does."""


@dataclass(frozen=True)
class Levels:
    """A group by hosts, seen from one rank."""

    inner: dist.ProcessGroup
    """The ranks of this host."""
    outer: dist.ProcessGroup
    """The ranks of this place on all hosts."""
    shares: bool
    """Whether the ranks of this host share memory."""

    @property
    def members(self) -> int:
        """Ranks of a host."""
        return self.inner.size()

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return self.outer.size()

    def scatter_inside(self, value: Tensor, reduce_op: str) -> Tensor:
        """This rank's part of the host's sum of a flat tensor."""
        op = "sum" if reduce_op == "avg" else reduce_op
        if self.shares and value.device.type == "cpu" and supports(value.dtype, op):
            return shared_memory.workspace_of(self.inner).reduce_scatter(value, op)
        part = value.new_empty(value.shape[0] // self.members, *value.shape[1:])
        dist.reduce_scatter_tensor(part, value, OPERATIONS[op], group=self.inner)
        return part

    def gather_inside(self, part: Tensor) -> Tensor:
        """The parts of the host's ranks."""
        if self.shares and part.device.type == "cpu":
            return shared_memory.workspace_of(self.inner).all_gather(part)
        whole = part.new_empty(part.shape[0] * self.members, *part.shape[1:])
        dist.all_gather_into_tensor(whole, part, group=self.inner)
        return whole


class Hierarchies:
    """The levels of the groups of this process."""

    def __init__(self) -> None:
        self._levels: dict[str, tuple[weakref.ref[dist.ProcessGroup], Levels]] = {}
        self._by_group = Locks()

    def of_name(self, name: str) -> Levels:
        """The levels of a group as a graph names it. The first call for a group is a collective one."""
        group = process_group(name)
        with self._by_group.of(name):
            known = self._levels.get(name)
            if known is not None and known[0]() is group:
                return known[1]
            levels = _levels_of(group)
            self._levels[name] = weakref.ref(group), levels
            return levels


HIERARCHIES = Hierarchies()
"""Those that the operators use."""


def _levels_of(group: dist.ProcessGroup) -> Levels:
    hosts, ranks = hosts_of(group), dist.get_process_group_ranks(group)
    members = members_by_host(hosts)
    if members is None:
        raise GroupError(
            f"ranks {ranks} do not lie on several hosts of equally many ranks each, host by host",
            where=f"hierarchical collective of group {group.group_name}",
            next_step="compile again on the ranks that there are now",
        )
    place = dist.get_rank(group)
    first = place - place % members
    inner = _part(group, ranks[first : first + members])
    outer = _part(group, ranks[place % members :: members])
    return Levels(inner, outer, shared_memory.probe(inner).available)


def _part(group: dist.ProcessGroup, ranks: Sequence[int]) -> dist.ProcessGroup:
    made: dist.ProcessGroup = dist.new_group(
        list(ranks),
        timeout=timedelta(seconds=group_timeout_s(group)),
        backend=dist.get_backend(group),
        use_local_synchronization=True,
    )
    return made


def all_reduce(input: Tensor, reduce_op: str, group_name: str) -> Tensor:
    """Every rank reduces a share of its host's data across the hosts."""
    levels, flat = HIERARCHIES.of_name(group_name), input.contiguous().view(-1)
    rest = -flat.numel() % levels.members
    if rest:
        flat = torch.nn.functional.pad(flat, (0, rest))
    part = levels.scatter_inside(flat, reduce_op)
    dist.all_reduce(part, OPERATIONS[reduce_op], group=levels.outer)
    whole = levels.gather_inside(_averaged(part, reduce_op, levels))
    return whole[: input.numel()].view(input.shape)


def all_gather(input: Tensor, group_size: int, group_name: str) -> Tensor:
    """Every rank gathers what its place has on all hosts; the host's ranks then share that."""
    levels, flat = HIERARCHIES.of_name(group_name), input.contiguous().view(1, -1)
    across = flat.new_empty(levels.hosts, flat.shape[1])
    dist.all_gather_into_tensor(across, flat, group=levels.outer)
    by_place = levels.gather_inside(across).view(levels.members, levels.hosts, -1)
    rows = input.shape[0] if input.dim() else 1
    return by_place.transpose(0, 1).reshape(rows * group_size, *input.shape[1:])


def reduce_scatter(input: Tensor, reduce_op: str, group_size: int, group_name: str) -> Tensor:
    """Every rank gets what its place needs of its host's sum, and its own part of that across the hosts."""
    levels = HIERARCHIES.of_name(group_name)
    by_place = input.reshape(levels.hosts, levels.members, -1).transpose(0, 1).reshape(group_size, -1)
    mine = levels.scatter_inside(by_place, reduce_op)
    part = mine.new_empty(1, mine.shape[1])
    dist.reduce_scatter_tensor(part, mine, OPERATIONS[reduce_op], group=levels.outer)
    return _averaged(part, reduce_op, levels).view(input.shape[0] // group_size, *input.shape[1:])


def _averaged(part: Tensor, reduce_op: str, levels: Levels) -> Tensor:
    return part.div_(levels.members * levels.hosts) if reduce_op == "avg" else part


for _name, _function in (
    ("hierarchical_all_reduce", all_reduce),
    ("hierarchical_all_gather", all_gather),
    ("hierarchical_reduce_scatter", reduce_scatter),
):
    torch.library.impl(NAMES[_name], "CompositeExplicitAutograd", _function)
