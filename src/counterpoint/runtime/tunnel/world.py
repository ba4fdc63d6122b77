"""Opening the tunnel: torch.distributed, initialised as one rank of a world that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint import _torch
from counterpoint.errors import GroupError, OptionError
from counterpoint.runtime.tunnel.group import BACKEND, TunnelGroup
from counterpoint.runtime.tunnel.log import CallLog
from counterpoint.runtime.tunnel.timing import Timing


@dataclass(frozen=True)
class Tunnel:
    """An open tunnel."""

    world_size: int
    rank: int
    timing: Timing
    log: CallLog
    """Every collective that went through."""


@contextmanager
def open_tunnel(world_size: int, *, timing: Timing, rank: int = 0) -> Iterator[Tunnel]:
    """Inside, this process is rank `rank` of `world_size`, in eager and compiled code, on CPU and GPU.

    A program that initialises process groups itself may do so: whatever backend and addresses it names, it gets the
    tunnel. On leaving, the groups are destroyed, and torch forgets their meshes and all compiled code.
    """
    _check(world_size, rank)
    tunnel = Tunnel(world_size, rank, timing, CallLog())
    with ExitStack() as undo:
        undo.callback(_forget)
        undo.enter_context(_torch.python_backend(BACKEND, _maker(tunnel)))
        undo.enter_context(_torch.implementations("_c10d_functional", _OUT_VARIANTS))
        initialise = _initialiser(tunnel)
        initialise()
        undo.enter_context(_programs_may_initialise(tunnel, initialise))
        yield tunnel


def _check(world_size: int, rank: int) -> None:
    if world_size < 1 or not 0 <= rank < world_size:
        raise OptionError(
            f"there is no rank {rank} in a world of {world_size}",
            where="open_tunnel",
            next_step="give a world size of at least 1 and a rank below it",
        )
    if dist.is_initialized():
        raise GroupError(
            "a process group is already initialised",
            where="open_tunnel",
            next_step="open the tunnel first, or call torch.distributed.destroy_process_group()",
        )


def _maker(tunnel: Tunnel) -> Callable[..., TunnelGroup]:
    def make(options: Any, _: Any) -> TunnelGroup:
        ranks = options.global_ranks_in_group or range(tunnel.world_size)
        return TunnelGroup(options.group_rank, tuple(ranks), tunnel.timing, tunnel.log, options.group_id)

    return make


def _initialiser(tunnel: Tunnel) -> Callable[[], None]:
    """Initialises the world of the tunnel, by torch's own function even where the program sees another one."""
    torchs = dist.init_process_group

    def initialise() -> None:
        torchs(BACKEND, store=_torch.fake_store(), rank=tunnel.rank, world_size=tunnel.world_size)

    return initialise


def _forget() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    _torch.forget_meshes()
    torch.compiler.reset()


@contextmanager
def _programs_may_initialise(tunnel: Tunnel, initialise: Callable[[], None]) -> Iterator[None]:
    """Answer `init_process_group` and `new_group` of an unchanged program, which name a backend of their own."""
    make_group = dist.new_group

    def init_process_group(*_: Any, **given: Any) -> None:
        asked = given.get("world_size", -1)
        if asked not in (-1, None, tunnel.world_size):
            raise GroupError(
                f"the program asks for {asked} ranks, and the tunnel has {tunnel.world_size}",
                where="init_process_group",
                next_step=f"open the tunnel with --world-size {asked}",
            )
        if not dist.is_initialized():
            initialise()

    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *rest: Any, **given: Any) -> Any:
        for unusable in ("pg_options", "device_id"):
            given.pop(unusable, None)
        return make_group(ranks, timeout, None, **given)

    with ExitStack() as undo:
        for module in _torch.modules_that_initialise():
            for name, stand_in in (("init_process_group", init_process_group), ("new_group", new_group)):
                if hasattr(module, name):
                    undo.enter_context(mock.patch.object(module, name, stand_in))
        yield


def _group(name: str) -> Any:
    return _torch.process_group(name)


def _all_gather_out(input: Tensor, group_size: int, group_name: str, *, out: Tensor) -> Tensor:
    _torch.register_work(out, _group(group_name).allgather_into_tensor_coalesced([out], [input]))
    return out


def _reduce_scatter_out(input: Tensor, reduce_op: str, group_size: int, group_name: str, *, out: Tensor) -> Tensor:
    group = _group(group_name)
    _torch.register_work(out, group.reduce_scatter_tensor_coalesced([out], [input], reduce_op))
    return out


# Torch's own go past a group written in Python, to a backend in C++.
_OUT_VARIANTS: dict[str, Callable[..., Tensor]] = {
    "all_gather_into_tensor_out": _all_gather_out,
    "reduce_scatter_tensor_out": _reduce_scatter_out,
}
