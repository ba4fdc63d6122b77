"""Collectives between the ranks of one host through memory that they share: several times faster than a socket.

    workspace = shared_memory.workspace_of(group)     # a collective call the first time; then a lookup
    workspace.all_reduce(t)                            # new tensor; out=t for in place
    workspace.one_shot_all_reduce(t, "max")            # also two_shot_all_reduce, all_gather, reduce_scatter
    with workspace.borrow(shape, dtype) as loan: ...   # read peers' memory in place: see loan.py
    shared_memory.probe(group)                         # whether it works here, and why not; the same on all ranks

In graphs (registered by importing this package; schemas, fakes and rows of the table in `ir/shared_memory.py` and
`ir/ops.py`), complete when they return, so without a wait:

    counterpoint::shm_all_reduce(input, reduce_op, group_name)            also shm_all_reduce_, shm_all_reduce_out
    counterpoint::shm_one_shot_all_reduce(input, reduce_op, group_name)   also shm_one_shot_all_reduce_, ..._out
    counterpoint::shm_two_shot_all_reduce(input, reduce_op, group_name)   also shm_two_shot_all_reduce_, ..._out
    counterpoint::shm_all_gather(input, group_size, group_name)           also shm_all_gather_out
    counterpoint::shm_reduce_scatter(input, reduce_op, group_size, group_name)   also shm_reduce_scatter_out

They take the arguments of the `_c10d_functional` operators of the same meaning. `shm_all_reduce` chooses between one
and two shots by size when it runs. `supports(dtype, reduce_op)` says what the kernels can reduce.
"""

from counterpoint.runtime.shared_memory import operators  # noqa: F401  registers what runs
from counterpoint.runtime.shared_memory.agree import rendezvous
from counterpoint.runtime.shared_memory.library import supports
from counterpoint.runtime.shared_memory.loan import Loan
from counterpoint.runtime.shared_memory.registry import WORKSPACES, Workspaces
from counterpoint.runtime.shared_memory.workspace import Workspace, reduce_into

workspace_of = WORKSPACES.of
probe = WORKSPACES.probe

__all__ = [
    "WORKSPACES",
    "Loan",
    "Workspace",
    "Workspaces",
    "probe",
    "reduce_into",
    "rendezvous",
    "supports",
    "workspace_of",
]
