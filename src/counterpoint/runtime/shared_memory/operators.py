"""The operators of `ir/shared_memory.py`, as they run."""

from __future__ import annotations

from torch import Tensor
from torch.library import impl

from counterpoint.ir.shared_memory import NAMES
from counterpoint.runtime.shared_memory.registry import WORKSPACES
from counterpoint.runtime.shared_memory.workspace import Workspace

_ALL_REDUCES = {
    "shm_all_reduce": Workspace.all_reduce,
    "shm_one_shot_all_reduce": Workspace.one_shot_all_reduce,
    "shm_two_shot_all_reduce": Workspace.two_shot_all_reduce,
}


def _register_all_reduce(name: str) -> None:
    run = _ALL_REDUCES[name]

    def functional(input: Tensor, reduce_op: str, group_name: str) -> Tensor:
        return run(WORKSPACES.of_name(group_name), input, reduce_op)

    def in_place(input: Tensor, reduce_op: str, group_name: str) -> Tensor:
        return run(WORKSPACES.of_name(group_name), input, reduce_op, out=input)

    def into(input: Tensor, reduce_op: str, group_name: str, *, out: Tensor) -> Tensor:
        return run(WORKSPACES.of_name(group_name), input, reduce_op, out=out)

    for suffix, function in (("", functional), ("_", in_place), ("_out", into)):
        impl(NAMES[name + suffix], "CPU", function)


def _all_gather(input: Tensor, group_size: int, group_name: str) -> Tensor:
    return WORKSPACES.of_name(group_name).all_gather(input)


def _all_gather_out(input: Tensor, group_size: int, group_name: str, *, out: Tensor) -> Tensor:
    return WORKSPACES.of_name(group_name).all_gather(input, out=out)


def _reduce_scatter(input: Tensor, reduce_op: str, group_size: int, group_name: str) -> Tensor:
    return WORKSPACES.of_name(group_name).reduce_scatter(input, reduce_op)


def _reduce_scatter_out(input: Tensor, reduce_op: str, group_size: int, group_name: str, *, out: Tensor) -> Tensor:
    return WORKSPACES.of_name(group_name).reduce_scatter(input, reduce_op, out=out)


for _name in _ALL_REDUCES:
    _register_all_reduce(_name)
impl(NAMES["shm_all_gather"], "CPU", _all_gather)
impl(NAMES["shm_all_gather_out"], "CPU", _all_gather_out)
impl(NAMES["shm_reduce_scatter"], "CPU", _reduce_scatter)
impl(NAMES["shm_reduce_scatter_out"], "CPU", _reduce_scatter_out)
