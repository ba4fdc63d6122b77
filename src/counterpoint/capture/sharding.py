"""Cutting parameters over a mesh: from a whole parameter to the sharded DTensor that stands in its place, and back.

The sharded parameter is the DTensor that torch's `fully_shard` makes: chunks as `torch.chunk` cuts them, so some ranks
may hold short or empty ones; placements `(Shard(d),)` on a 1-D mesh and `(Replicate(), Shard(d))` on a 2-D one; and for
a parameter that tensor parallelism has already cut, the placements of both on the mesh of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from counterpoint import _torch
from counterpoint.capture.collectives import Cut, Precision, Ranks
from counterpoint.capture.mixed_precision import gradient_dtype, parameter_dtype
from counterpoint.errors import CaptureError, OptionError

ShardPlacementFn = Callable[[nn.Parameter], Shard | None]


@dataclass(frozen=True)
class DataMesh:
    """The mesh handed to `fully_shard`: its last dimension shards, and the one before, if any, replicates."""

    mesh: DeviceMesh
    shard: Ranks
    replicate: Ranks | None

    @staticmethod
    def of(mesh: DeviceMesh) -> DataMesh:
        """Names and sizes of the groups of a mesh with one or two dimensions."""
        if mesh.ndim not in (1, 2):
            raise OptionError(
                f"the mesh has {mesh.ndim} dimensions, fully_shard takes 1 (shard) or 2 (replicate, shard)",
                where="fully_shard: mesh",
                next_step='pass a slice of it, such as mesh["dp"]',
            )
        return DataMesh(mesh, ranks_of(mesh, mesh.ndim - 1), ranks_of(mesh, 0) if mesh.ndim == 2 else None)


@dataclass(frozen=True)
class Outline:
    """What it takes to wrap a local tensor as the DTensor that tensor parallelism had made of the parameter."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]

    def of_local(self, local: Tensor) -> Tensor:
        """The DTensor with this local part; its gradient is brought back to the same placements."""
        return DTensor.from_local(
            local, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
        )


@dataclass(frozen=True)
class Recipe:
    """How one sharded parameter becomes whole again."""

    cut: Cut
    replicas: Ranks | None
    precision: Precision
    tensor_parallel: Outline | None


def ranks_of(mesh: DeviceMesh, dim: int) -> Ranks:
    """The process group along one dimension of a mesh."""
    return Ranks(mesh.get_group(dim).group_name, mesh.size(dim))


def outline_of(parameter: Tensor) -> Outline | None:
    """The outline of a parameter that is a DTensor already; None for a plain one."""
    if not isinstance(parameter, DTensor):
        return None
    if any(isinstance(placement, Partial) for placement in parameter.placements):
        raise CaptureError(
            f"a parameter has the placements {parameter.placements}",
            next_step="reduce it before wrapping: parameters are sharded or replicated, never partial",
        )
    return Outline(parameter.device_mesh, tuple(parameter.placements), parameter.shape, parameter.stride())


def shard_dim(parameter: nn.Parameter, choose: ShardPlacementFn | None) -> int:
    """The dimension to cut: what `shard_placement_fn` answers, else the first."""
    placement = None if choose is None else choose(parameter)
    if placement is None:
        return 0
    if type(placement) is not Shard or not -parameter.ndim <= placement.dim < parameter.ndim:
        raise OptionError(
            f"shard_placement_fn answered {placement} for a parameter of shape {tuple(parameter.shape)}",
            where="fully_shard: shard_placement_fn",
            next_step="answer None or Shard(dim) with a dimension of the parameter",
        )
    return placement.dim % parameter.ndim


def shard_parameter(
    parameter: nn.Parameter, data: DataMesh, dim: int, policy: MixedPrecisionPolicy
) -> tuple[nn.Parameter, Recipe]:
    """The sharded parameter with this rank's chunk of the whole one, and how to read it. No communication."""
    outline = outline_of(parameter)
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    cut = Cut(dim, local.shape[dim], data.shard)
    sharded = DTensor.from_local(
        _own_chunk(local.detach(), cut, data.mesh.get_local_rank(data.mesh.ndim - 1)),
        data.mesh if outline is None else _torch.joined_mesh(data.mesh, outline.mesh),
        _placements(data, dim, outline),
        run_check=False,
        shape=parameter.shape,
        stride=torch.empty(parameter.shape, device="meta").stride(),
    )
    precision = Precision(parameter_dtype(policy, parameter), gradient_dtype(policy, parameter))
    recipe = Recipe(cut, data.replicate, precision, outline)
    return nn.Parameter(sharded, requires_grad=parameter.requires_grad), recipe


def _own_chunk(whole: Tensor, cut: Cut, rank: int) -> Tensor:
    start = min(rank * cut.chunk, cut.length)
    length = min(cut.chunk, cut.length - start)
    # A copy, so that the whole parameter can be freed.
    return whole.narrow(cut.dim, start, length).clone(memory_format=torch.contiguous_format)


def _placements(data: DataMesh, dim: int, outline: Outline | None) -> tuple[Placement, ...]:
    inner = () if outline is None else outline.placements
    shards_inside = 1
    if outline is not None:
        for mesh_dim, placement in enumerate(inner):
            if isinstance(placement, Shard) and placement.dim == dim:
                shards_inside *= outline.mesh.size(mesh_dim)
    own = Shard(dim) if shards_inside == 1 else _torch.strided_shard(dim, shards_inside)
    return (Replicate(),) * (data.mesh.ndim - 1) + (own,) + inner
