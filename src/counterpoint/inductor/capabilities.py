"""What the ranks of a graph's groups can do with each other, found out before the graph is compiled.

Finding out is a collective call, and a compile is none: one rank may compile where another has the code already. So the
ranks first meet over the store, once for each group, at the compile of the first graph that communicates in it. All of
them come there, since all run that graph; where one does not in time, nobody probes, and the group stays with the
library. Code from the FX graph cache comes by here too, and what was found is part of its key.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._dispatch.python import no_python_dispatcher
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from counterpoint._torch import process_group
from counterpoint.cost.capabilities import Capabilities, CapabilityTable
from counterpoint.inductor.plan import Plan
from counterpoint.ir import metadata, ops
from counterpoint.ir.groups import GroupTable, group_of
from counterpoint.passes.comm_lowering import LowerCollectives
from counterpoint.runtime.assembly import assemble
from counterpoint.runtime.locks import Locks
from counterpoint.runtime.pretend import pretends
from counterpoint.runtime.probe import PROBES, Probes

PATIENCE_S = 120.0
"""How long ranks wait for each other before a compile, if the option `agreement_s` does not say less. Compiles follow
each other on a rank, so ranks that compile the same graphs in another order would all stand still for that long."""


class Assemblies:
    """The groups whose ranks have met in this process, or have not."""

    def __init__(self, probes: Probes = PROBES) -> None:
        self._probes = probes
        self._missed: dict[str, weakref.ref[dist.ProcessGroup]] = {}
        self._by_group = Locks()

    def table(self, plan: Plan, groups: GroupTable, starts: Sequence[Node]) -> CapabilityTable:
        """The capabilities of a graph's groups; of none where no pass asks, or nobody is to be waited for."""
        within_s = plan.options.agreement_s
        asking = [item for item in plan.pipeline.passes if isinstance(item, LowerCollectives)]
        if not asking or within_s is None or not dist.is_initialized() or pretends():
            return CapabilityTable()
        found: dict[tuple[str, str], Capabilities] = {}
        # In graph order, which is that of all ranks.
        for name, device in dict.fromkeys(_asked(starts)):
            group = process_group(name)
            if len(groups[name]) < 2 or pretends(group) or not any(item.covers(device.type) for item in asking):
                continue
            with self._by_group.of(name):
                if self._met(name, group, groups[name], min(within_s, PATIENCE_S)):
                    with outside_of_compiling():
                        found[name, device.type] = self._probes.of(group, device)
        return CapabilityTable(found)

    def _met(self, name: str, group: dist.ProcessGroup, ranks: Sequence[int], within_s: float) -> bool:
        if self._probes.knows(group):
            return True
        missed = self._missed.get(name)
        if missed is not None and missed() is group:
            return False
        topic = f"{name}/{'-'.join(map(str, ranks))}"
        if assemble(_store(), topic, ranks, dist.get_rank(), within_s):
            return True
        self._missed[name] = weakref.ref(group)
        return False


ASSEMBLIES = Assemblies()
"""Those of this process."""


@contextmanager
def outside_of_compiling() -> Iterator[None]:
    """Real tensors and plain calls for a while.

    Compiling happens among tensors that only pretend, and under a dispatcher that calls kernels with the interpreter's
    lock held. A collective must not be called so: a thread of gloo that lets go of a tensor of Python's wants that lock
    while it has the queue's, which the call waits for.
    """
    with _disable_current_modes(), no_python_dispatcher():
        yield


def _asked(starts: Sequence[Node]) -> Iterator[tuple[str, torch.device]]:
    for node in starts:
        spec = ops.spec_of(node.target)
        name = group_of(ops.argument(node, spec.group)).name if spec is not None and spec.group is not None else None
        tensors = metadata.tensors_of(node) if metadata.has_value(node) else ()
        if name is not None and tensors:
            yield name, torch.device(tensors[0].device.type)


def _store() -> Any:
    return c10d._get_default_store()
