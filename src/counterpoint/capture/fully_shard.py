"""`fully_shard` for graphs: torch's composable API, with every collective an operator that `torch.compile` sees.

Change the import and keep the call. What differs from torch's:

- Each parameter is gathered by a collective of its own when it is read, and one that is read twice is gathered and
  reduced twice. Merging them is the work of passes.
- Gradients are reduced at every backward.
- `reshard_after_forward` shapes compiled graphs: their backward gathers again or not. In eager mode the gathered
  parameter lives until its backward. Inside an activation-checkpointed region, the gather is repeated with the region.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.tensor import DTensor

from counterpoint import _torch
from counterpoint.capture.collectives import GatherParameter
from counterpoint.capture.mixed_precision import FULL_PRECISION
from counterpoint.capture.sharding import DataMesh, Recipe, ShardPlacementFn, shard_dim, shard_parameter
from counterpoint.capture.wrapping import (
    Membership,
    Unit,
    WrappedModule,
    check_options,
    check_readable,
    check_wrappable,
    managed_parameters,
    membership_of,
    modules_to_wrap,
    wrap_module,
)
from counterpoint.errors import CaptureError, GroupError, OptionError

M = TypeVar("M", bound="nn.Module | list[nn.Module]")
NO_OFFLOAD = OffloadPolicy()
_ACCEPTED: Mapping[str, tuple[tuple[Any, ...], str]] = MappingProxyType(
    {
        "dp_mesh_dims": (
            (None,),
            "pass the data-parallel slice of the mesh as mesh=; parameters may be DTensors on the rest",
        )
    }
)
# Left on a whole parameter when it is sharded, so that a module wrapped later that holds it too stays tied to it.
SUCCESSOR = "_counterpoint_sharded"


class ShardUnit(Unit):
    """The modules of one call of `fully_shard`."""

    def __init__(self, policy: MixedPrecisionPolicy, data: DataMesh, reshard: bool | None) -> None:
        super().__init__(policy)
        self.data = data
        self.reshard = reshard
        self.is_outermost = True

    @property
    def gathers_again(self) -> bool:
        """Whether backward gathers again. Undecided means: yes, except where no wrapped module lies around this one."""
        return not self.is_outermost if self.reshard is None else self.reshard

    def read(self, parameter: nn.Parameter, recipe: Recipe) -> Tensor:
        """The whole parameter. A checkpointed region around the gather makes the partitioner repeat it in backward."""
        piece = parameter.to_local() if isinstance(parameter, DTensor) else parameter

        def gather(piece: Tensor) -> Tensor:
            whole: Tensor = GatherParameter.apply(piece, recipe.cut, recipe.replicas, recipe.precision)
            return whole

        if self.gathers_again and torch.compiler.is_dynamo_compiling() and torch.is_grad_enabled():
            whole = _torch.recomputed(gather, piece)
        else:
            whole = gather(piece)
        return whole if recipe.tensor_parallel is None else recipe.tensor_parallel.of_local(whole)


class FullyShardedModule(WrappedModule):
    """What `fully_shard` adds to a module: the methods of torch's `FSDPModule` that mean something in a graph."""

    prefix: ClassVar[str] = "FullyShard"

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether backward gathers again. What is compiled already compiles anew; `recurse` includes modules inside."""
        for module in self.modules() if recurse else [self]:
            unit = _shard_unit_of(module)
            if unit is not None:
                unit.reshard = reshard_after_forward

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Only True: gradients are reduced at every backward, and accumulate reduced."""
        if not requires_gradient_sync:
            raise OptionError(
                "gradients cannot be accumulated without reducing them",
                where="fully_shard: set_requires_gradient_sync",
                next_step="drop the call; several backward passes before a step add up to the same gradient",
            )

    def set_modules_to_forward_prefetch(self, modules: Any) -> NoReturn:
        """Refused: when to start a gather is decided by the passes."""
        raise _ordered_by_passes("set_modules_to_forward_prefetch")

    def set_modules_to_backward_prefetch(self, modules: Any) -> NoReturn:
        """Refused: when to start a gather is decided by the passes."""
        raise _ordered_by_passes("set_modules_to_backward_prefetch")


def fully_shard(
    module: M,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: ShardPlacementFn | None = None,
    mp_policy: MixedPrecisionPolicy = FULL_PRECISION,
    offload_policy: OffloadPolicy = NO_OFFLOAD,
    ignored_params: set[nn.Parameter] | None = None,
    **options: Any,
) -> M:
    """Shard the parameters of a module, or of several that form one unit, in place; inner modules first, as with torch.

    mesh: one dimension shards; of two, the first replicates and the second shards. Default: all ranks.
    reshard_after_forward: True gathers again in backward, False keeps, None is True except for the outermost module. An
        integer is accepted where it means one of these (1, or the size of the shard dimension).
    shard_placement_fn: the dimension to cut, by parameter; uneven cuts are allowed along any dimension.
    mp_policy: all four fields of torch's policy.
    offload_policy: none but the default.
    ignored_params: left as they are, their gradients unreduced.
    options: further options of torch's, refused by name.
    """
    roots: list[nn.Module] = [module] if isinstance(module, nn.Module) else list(module)
    check_options(options, _ACCEPTED, fully_shard)
    _check_policy(offload_policy)
    for root in roots:
        check_wrappable(root, "fully_shard")
    data = DataMesh.of(mesh if mesh is not None else _mesh_of_all_ranks())
    unit = ShardUnit(mp_policy, data, _reshard(reshard_after_forward, data))
    _mark_inner_units(roots)
    _shard_modules(unit, roots, shard_placement_fn, ignored_params)
    return module


def _shard_modules(
    unit: ShardUnit, roots: Sequence[nn.Module], choose: ShardPlacementFn | None, ignored: set[nn.Parameter] | None
) -> None:
    modules = modules_to_wrap(roots)
    managed = {owner: managed_parameters(owner, ignored) for owner in modules}
    # Check everything before changing anything: a refusal must leave the model as it was.
    for owner, parameters in managed.items():
        if parameters or owner in roots:
            check_readable(owner, "fully_shard")
        for name, parameter in parameters.items():
            _check_parameter(f"{type(owner).__name__}.{name}", parameter)
            shard_dim(parameter, choose)
    for owner, parameters in managed.items():
        recipes: dict[str, Recipe] = {}
        for name, parameter in parameters.items():
            owner._parameters[name], recipes[name] = _sharded(parameter, unit, choose)
        _move_buffers(owner, unit.data.mesh.device_type)
        if recipes or owner in roots:
            wrap_module(owner, FullyShardedModule, Membership(unit, owner in roots, recipes))


def _sharded(parameter: nn.Parameter, unit: ShardUnit, choose: ShardPlacementFn | None) -> tuple[nn.Parameter, Recipe]:
    successor: tuple[nn.Parameter, Recipe] | None = getattr(parameter, SUCCESSOR, None)
    if successor is None:
        successor = shard_parameter(parameter, unit.data, shard_dim(parameter, choose), unit.policy)
        setattr(parameter, SUCCESSOR, successor)
    return successor


def _move_buffers(module: nn.Module, device_type: str) -> None:
    # Sharded parameters lie on the device of the mesh; what is computed with them has to lie there too.
    for name, buffer in module._buffers.items():
        if buffer is not None and not buffer.is_meta and buffer.device.type != device_type:
            module._buffers[name] = buffer.to(device_type)


def _check_parameter(name: str, parameter: nn.Parameter) -> None:
    if parameter.ndim == 0:
        raise CaptureError(
            f"{name} is a scalar and has no dimension to cut",
            where="fully_shard",
            next_step="make it a tensor with one element, or list it in ignored_params",
        )


def _check_policy(offload: OffloadPolicy) -> None:
    if type(offload) is not OffloadPolicy:
        raise OptionError(
            f"{type(offload).__name__} is not supported",
            where="fully_shard: offload_policy",
            next_step="leave offload_policy out; a graph keeps parameters on the device of the mesh",
        )


def _reshard(value: bool | int | None, data: DataMesh) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if value in (1, data.shard.size):
        return value != 1
    raise OptionError(
        f"reshard_after_forward={value} asks for a smaller group than the {data.shard.size} ranks of the mesh",
        where="fully_shard: reshard_after_forward",
        next_step="use True (gather again in backward), False (keep), or a 2-D mesh with that shard dimension",
    )


def _mark_inner_units(roots: Iterable[nn.Module]) -> None:
    for root in roots:
        for module in root.modules():
            unit = _shard_unit_of(module)
            if unit is not None:
                unit.is_outermost = False


def _shard_unit_of(module: nn.Module) -> ShardUnit | None:
    membership = membership_of(module)
    return membership.unit if membership is not None and isinstance(membership.unit, ShardUnit) else None


def _mesh_of_all_ranks() -> DeviceMesh:
    if not dist.is_initialized():
        raise GroupError(
            "there is no process group to shard over",
            where="fully_shard",
            next_step="call torch.distributed.init_process_group first, or pass mesh=",
        )
    # A torch built for an accelerator also runs where there is none.
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return init_device_mesh("cpu" if accelerator is None else accelerator.type, (dist.get_world_size(),))


def _ordered_by_passes(method: str) -> OptionError:
    return OptionError(
        f"{method} has no meaning for a compiled graph",
        where="fully_shard",
        next_step="drop the call; the order of gathers is decided when the graph is compiled",
    )
