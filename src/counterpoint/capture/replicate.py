"""`replicate` for graphs: gradients averaged by an all-reduce each, an operator that `torch.compile` sees.

Change the import and keep the call. As DistributedDataParallel does, it copies parameters and buffers from the first
rank when it wraps, divides gradients by the number of ranks and then sums them, and copies buffers from the first rank
before each forward. What differs:

- One all-reduce for each use of a parameter. Merging them is the work of passes.
- Gradients are reduced at every backward.
- A parameter that no rank uses needs no flag and keeps `grad` as it is. One that only some ranks use is not supported:
  ranks with different graphs cannot meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from counterpoint.capture.collectives import Precision, Ranks, ReplicateParameter, broadcast
from counterpoint.capture.mixed_precision import FULL_PRECISION, gradient_dtype, parameter_dtype
from counterpoint.capture.sharding import Outline, outline_of
from counterpoint.capture.wrapping import (
    Membership,
    Unit,
    WrappedModule,
    check_options,
    check_readable,
    check_wrappable,
    managed_parameters,
    modules_to_wrap,
    wrap_module,
)
from counterpoint.errors import CaptureError, GroupError, OptionError

M = TypeVar("M", bound=nn.Module)
_BY_PASSES = "drop it: the sizes and layout of buckets are options of the backend"
_BY_DEVICE = "drop it, and move the module to its device before wrapping it"
# What DistributedDataParallel also takes. Each is accepted at the values that ask for what happens here anyway.
_ACCEPTED: Mapping[str, tuple[tuple[Any, ...], str]] = MappingProxyType(
    {
        "device_id": ((None,), _BY_DEVICE),
        "device_ids": ((None,), _BY_DEVICE),
        "output_device": ((None,), _BY_DEVICE),
        "dim": ((0,), "drop it: inputs are never scattered"),
        "static_graph": ((False, True), ""),
        "find_unused_parameters": (
            (False,),
            "drop it: parameters that no rank uses are left alone, and every rank must use the same ones",
        ),
        "skip_all_reduce_unused_params": ((False,), "drop it: unused parameters are never reduced"),
        "check_reduction": ((False,), "drop it: the graph says what is reduced"),
        "gradient_as_bucket_view": ((False,), _BY_PASSES),
        "bucket_cap_mb": ((None,), _BY_PASSES),
        "bucket_cap_mb_list": ((None,), _BY_PASSES),
        "batched_grad_copy": ((False,), _BY_PASSES),
        "delay_all_reduce_named_params": ((None,), _BY_PASSES),
        "param_to_hook_all_reduce": ((None,), _BY_PASSES),
        "mesh": ((None,), "call it device_mesh"),
        "mixed_precision": ((None,), "use mp_policy=MixedPrecisionPolicy(...)"),
    }
)


@dataclass(frozen=True)
class Recipe:
    """How one replicated parameter is read."""

    precision: Precision
    tensor_parallel: Outline | None


class ReplicaUnit(Unit):
    """The modules of one call of `replicate`."""

    def __init__(self, policy: MixedPrecisionPolicy, ranks: Ranks, buffers: Sequence[tuple[nn.Module, str]]) -> None:
        super().__init__(policy)
        self.ranks = ranks
        self.buffers = buffers

    def before_forward(self) -> None:
        """Buffers as the first rank has them. A module that replaces a buffer is followed: it is looked up by name."""
        with torch.no_grad():
            for module, name in self.buffers:
                buffer = module._buffers[name]
                if buffer is not None and buffer.numel() > 0:
                    buffer = torch.view_as_real(buffer) if buffer.is_complex() else buffer
                    buffer.copy_(broadcast(buffer, self.ranks))

    def read(self, parameter: nn.Parameter, recipe: Recipe) -> Tensor:
        """The parameter, through a function whose backward reduces, where a backward can follow."""
        if not (torch.is_grad_enabled() and parameter.requires_grad):
            return parameter.to(recipe.precision.parameter)
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        read: Tensor = ReplicateParameter.apply(local, self.ranks, recipe.precision)
        return read if recipe.tensor_parallel is None else recipe.tensor_parallel.of_local(read)


class ReplicatedModule(WrappedModule):
    """What `replicate` adds to a module."""

    prefix: ClassVar[str] = "Replicate"

    def set_requires_gradient_sync(self, requires_gradient_sync: bool) -> None:
        """Only True: gradients are reduced at every backward, and accumulate reduced."""
        if not requires_gradient_sync:
            raise OptionError(
                "gradients cannot be accumulated without reducing them",
                where="replicate: set_requires_gradient_sync",
                next_step="drop the call; several backward passes before a step add up to the same gradient",
            )


def replicate(
    module: M,
    ignored_modules: Iterable[nn.Module] | None = None,
    *,
    device_mesh: DeviceMesh | None = None,
    process_group: dist.ProcessGroup | None = None,
    init_sync: bool = True,
    broadcast_buffers: bool = True,
    forward_sync_buffers: bool | None = None,
    ignored_params: set[nn.Parameter] | None = None,
    mp_policy: MixedPrecisionPolicy = FULL_PRECISION,
    **options: Any,
) -> M:
    """Keep a module the same on all ranks, in place: gradients become their mean over the group.

    device_mesh, process_group: where to reduce, at most one of the two; a mesh has one dimension. Default: all ranks.
    init_sync: copy parameters and buffers from the first rank now.
    broadcast_buffers: copy buffers from the first rank now and before every forward; False does neither.
    forward_sync_buffers: the same for the forward alone, and takes precedence there.
    ignored_modules, ignored_params: left as they are, their gradients unreduced.
    mp_policy: as in `fully_shard`.
    options: further options of DistributedDataParallel, accepted at values that change nothing here, refused otherwise.
    """
    check_options(options, _ACCEPTED, replicate)
    check_wrappable(module, "replicate")
    ranks, group = _group(device_mesh, process_group)
    modules = modules_to_wrap([module], ignored_modules or ())
    recipes = _recipes(modules, module, ignored_params, mp_policy)
    buffers = [(owner, name) for owner in modules for name in owner._buffers]
    if init_sync:
        managed = [parameter for owner in modules for parameter in managed_parameters(owner, ignored_params).values()]
        copied = [buffer for buffer in _tensors(buffers) if broadcast_buffers]
        _copy_from_first_rank([*managed, *copied], group)
    follows = broadcast_buffers if forward_sync_buffers is None else forward_sync_buffers
    unit = ReplicaUnit(mp_policy, ranks, buffers if follows else [])
    for owner in modules:
        if recipes[owner] or owner is module:
            wrap_module(owner, ReplicatedModule, Membership(unit, owner is module, recipes[owner]))
    return module


def _recipes(
    modules: Iterable[nn.Module], root: nn.Module, ignored: set[nn.Parameter] | None, policy: MixedPrecisionPolicy
) -> dict[nn.Module, dict[str, Recipe]]:
    recipes: dict[nn.Module, dict[str, Recipe]] = {}
    for owner in modules:
        recipes[owner] = {
            name: Recipe(
                Precision(parameter_dtype(policy, parameter), gradient_dtype(policy, parameter)), outline_of(parameter)
            )
            for name, parameter in managed_parameters(owner, ignored).items()
        }
        if recipes[owner] or owner is root:
            check_readable(owner, "replicate")
    return recipes


def _tensors(buffers: Iterable[tuple[nn.Module, str]]) -> list[Tensor]:
    found = (module._buffers[name] for module, name in buffers)
    return [buffer for buffer in found if buffer is not None]


def _copy_from_first_rank(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> None:
    # Tied parameters are one tensor under several names, and travel once.
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
        if local.is_meta:
            raise CaptureError(
                "a parameter or buffer is on the meta device and has no value to copy",
                where="replicate",
                next_step="materialise the module first (to_empty and initialise), or pass init_sync=False",
            )
        if local.numel() > 0:
            sent = (torch.view_as_real(local) if local.is_complex() else local).contiguous()
            dist.broadcast(sent, src=dist.get_global_rank(group, 0), group=group)
            local.copy_(torch.view_as_complex(sent) if local.is_complex() else sent)


def _group(mesh: DeviceMesh | None, group: dist.ProcessGroup | None) -> tuple[Ranks, dist.ProcessGroup]:
    if mesh is not None and group is not None:
        raise OptionError(
            "device_mesh and process_group were both given", where="replicate", next_step="pass one of the two"
        )
    if mesh is not None and mesh.ndim != 1:
        raise OptionError(
            f"the mesh has {mesh.ndim} dimensions, replicate takes one",
            where="replicate: device_mesh",
            next_step='pass a slice of it, such as mesh["dp"], or use fully_shard on two dimensions',
        )
    if not dist.is_initialized():
        raise GroupError(
            "there is no process group to reduce over",
            where="replicate",
            next_step="call torch.distributed.init_process_group first",
        )
    if mesh is not None:
        group = mesh.get_group()
    elif group is None:
        group = dist.group.WORLD
    if group is None:
        raise GroupError("this rank has no default process group", where="replicate")
    return Ranks(group.group_name, group.size()), group
