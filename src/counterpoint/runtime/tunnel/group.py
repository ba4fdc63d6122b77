"""A process group that stands in for one rank of n. The names and arguments of its methods are torch's.

Torch calls a group written in Python through these methods, from eager code, from functional collectives in compiled
code, and from DDP's reducer. Versions differ in names, so some methods have two (the newer ones from 2.13 on).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint.ir.ops import Kind
from counterpoint.runtime.pretend import TUNNEL
from counterpoint.runtime.tunnel import movement
from counterpoint.runtime.tunnel.channels import Channel, HostChannel, Move, channel_on
from counterpoint.runtime.tunnel.log import Call, CallLog
from counterpoint.runtime.tunnel.timing import Timing
from counterpoint.runtime.tunnel.work import TunnelWork

BACKEND = TUNNEL
_REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")


def reduction_of(options: Any) -> str:
    """The reduction that options ask for, as text. A sum with a factor counts as an average, which is its use."""
    wanted = getattr(options, "reduceOp", options)
    if isinstance(wanted, str):
        return wanted
    known = (name for name in _REDUCTIONS if wanted == getattr(dist.ReduceOp, name.upper()))
    return "sum" if wanted is None else next(known, "avg")


@dataclass(frozen=True)
class Job:
    """A collective that has not begun."""

    kind: Kind
    name: str
    nbytes: int
    move: Move
    results: list[Tensor]
    held: list[Tensor]


@dataclass(frozen=True)
class Traits:
    """What torch may ask of the backend of a device: the tunnel offers none of what NCCL can do beside collectives."""

    supports_time_estimate: bool = False
    supports_coalescing: bool = False
    supports_splitting: bool = False
    supports_tensor_alloc: bool = False


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# The stubs describe overloads of the C++ class; torch calls a group written in Python in one form only.
_Base: Any = dist.ProcessGroup


class TunnelGroup(_Base):  # type: ignore[misc]
    """Rank `rank` of the ranks `ranks`; collectives take the time that `timing` says, on a channel of this group."""

    def __init__(self, rank: int, ranks: Sequence[int], timing: Timing, log: CallLog, name: str) -> None:
        super().__init__(rank, len(ranks))
        self._own, self._ranks, self._timing, self._log, self._name = rank, tuple(ranks), timing, log, name
        self._description = "wind tunnel"
        self._channels: dict[torch.device, Channel] = {}
        self._collected: list[Job] | None = None

    # -- what torch asks about a group -----------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return BACKEND

    def name(self) -> str:
        return BACKEND

    @property
    def pg_name(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name = setGroupName

    @property
    def group_desc(self) -> str:
        return self._description

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    _set_group_desc = setGroupDesc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cuda" if torch.cuda.is_available() else "cpu")]

    def _get_backend(self, device: torch.device) -> Traits:
        return Traits()

    def shutdown(self) -> None:
        """Nothing to close."""

    def abort(self) -> None:
        """Nothing to break off."""

    # -- one buffer in, one out ------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> TunnelWork:
        return self._reduce_in_place("all_reduce", Kind.ALL_REDUCE, _listed(tensors), opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> TunnelWork:
        return self._reduce_in_place("all_reduce", Kind.ALL_REDUCE, tensors, opts)

    def reduce(self, tensors: Any, opts: Any = None) -> TunnelWork:
        return self._reduce_in_place("reduce", Kind.REDUCE, _listed(tensors), opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> TunnelWork:
        return self._run("broadcast", Kind.BROADCAST, _listed(tensors), [], lambda: None)

    def allgather_into_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> TunnelWork:
        def move() -> None:
            for target, part in zip(outputs, inputs, strict=True):
                movement.gathered_into(target, part)

        return self._run("all_gather", Kind.ALL_GATHER, outputs, inputs, move)

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> TunnelWork:
        how = reduction_of(opts)

        def move() -> None:
            for target, value in zip(outputs, inputs, strict=True):
                movement.scattered_into(target, value, how, self._own, self.size())

        return self._run("reduce_scatter", Kind.REDUCE_SCATTER, outputs, inputs, move, size_of=inputs)

    def alltoall_base(
        self, output: Tensor, input: Tensor, received: list[int], sent: list[int], opts: Any = None
    ) -> TunnelWork:
        def move() -> None:
            movement.exchanged_into(output, input, received, sent, self._own, self.size())

        return self._run("all_to_all", Kind.ALL_TO_ALL, [output], [input], move)

    def _allgather_base(self, output: Tensor, input: Tensor, opts: Any = None) -> TunnelWork:
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None) -> TunnelWork:
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base

    # -- lists of buffers ------------------------------------------------------------------------------------------

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> TunnelWork:
        def move() -> None:
            for targets, part in zip(outputs, inputs, strict=True):
                for target in targets:
                    target.copy_(part.view_as(target))

        return self._run("all_gather", Kind.ALL_GATHER, [one for many in outputs for one in many], inputs, move)

    allgather_coalesced = allgather

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> TunnelWork:
        how = reduction_of(opts)

        def move() -> None:
            for target, values in zip(outputs, inputs, strict=True):
                movement.reduced_into(target, values[self._own], how, self.size())

        flat = [one for many in inputs for one in many]
        return self._run("reduce_scatter", Kind.REDUCE_SCATTER, outputs, flat, move, size_of=flat)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> TunnelWork:
        def move() -> None:
            for target in outputs:
                movement.fill(target.view(-1), inputs[self._own].reshape(-1))

        return self._run("all_to_all", Kind.ALL_TO_ALL, outputs, inputs, move)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> TunnelWork:
        if outputs:
            return self.allgather(outputs, inputs, opts)
        return self._run("gather", Kind.SEND, inputs, [], lambda: None)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> TunnelWork:
        def move() -> None:
            for target, values in zip(outputs, inputs, strict=False):
                target.copy_(values[self._own])

        flat = [one for many in inputs for one in many]
        return self._run("scatter", Kind.BROADCAST, outputs, flat, move, size_of=flat or outputs)

    # -- without data, or with one peer ----------------------------------------------------------------------------

    def barrier(self, opts: Any = None) -> TunnelWork:
        return self._run("barrier", Kind.ALL_REDUCE, [], [], lambda: None)

    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> TunnelWork:
        return self._run("send", Kind.SEND, tensors, [], lambda: None)

    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> TunnelWork:
        def move() -> None:
            for tensor in tensors:
                tensor.zero_()

        return self._run("recv", Kind.RECV, tensors, [], move)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> TunnelWork:
        return self.recv(tensors, 0, tag)

    # -- several at once -------------------------------------------------------------------------------------------

    def _start_coalescing(self, device: torch.device | None = None) -> None:
        self._collected = []

    def _end_coalescing(self, device: torch.device | None = None) -> TunnelWork:
        jobs, self._collected = self._collected or [], None
        return self._launch(jobs)

    # -- how all of them run ---------------------------------------------------------------------------------------

    def _reduce_in_place(self, name: str, kind: Kind, tensors: list[Tensor], opts: Any) -> TunnelWork:
        how = reduction_of(opts)

        def move() -> None:
            for tensor in tensors:
                movement.reduced_into(tensor, tensor, how, self.size())

        return self._run(name, kind, tensors, [], move)

    def _run(
        self,
        name: str,
        kind: Kind,
        results: Sequence[Tensor],
        inputs: Sequence[Tensor],
        move: Callable[[], None],
        size_of: Sequence[Tensor] | None = None,
    ) -> TunnelWork:
        job = Job(kind, name, _nbytes(results if size_of is None else size_of), move, [*results], [*results, *inputs])
        if self._collected is None:
            return self._launch([job])
        self._collected.append(job)
        return self._launch([])

    def _launch(self, jobs: Sequence[Job]) -> TunnelWork:
        """Run jobs as one transfer, with one latency for each kind among them."""
        held = [tensor for job in jobs for tensor in job.held]
        device = held[0].device if held else self._device_types[0]
        sizes: dict[Kind, int] = {}
        for job in jobs:
            sizes[job.kind] = sizes.get(job.kind, 0) + job.nbytes
        duration_us = sum(self._timing.us(kind, size, self._ranks, device.type) for kind, size in sizes.items())

        def move() -> None:
            for job in jobs:
                job.move()

        with torch.no_grad():
            ticket = self._channel(device, bool(jobs)).launch(move, duration_us, self._timing.contention_sms)
        name = "+".join(dict.fromkeys(job.name for job in jobs))
        call = Call(name, self._name, sum(sizes.values()), duration_us, time.perf_counter() * 1e6, 0.0)
        number = self._log.add(call) if jobs else -1
        return TunnelWork(ticket, [tensor for job in jobs for tensor in job.results], held, self._log, number)

    def _channel(self, device: torch.device, real: bool) -> Channel:
        if not real:
            return HostChannel()
        if device not in self._channels:
            self._channels[device] = channel_on(device)
        return self._channels[device]


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)
