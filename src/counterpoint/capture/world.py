"""Worlds to capture in: a pretended one of any size in this process, or the real one that is already there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.fx import Graph, GraphModule, Node

from counterpoint import _torch
from counterpoint.errors import GroupError, OptionError
from counterpoint.ir import ops
from counterpoint.ir.groups import group_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class World:
    """The default process group as a capture sees it."""

    size: int
    rank: int
    device_type: str = "cpu"
    """The device of the meshes that `mesh` makes."""

    def mesh(self, *shape: int, names: tuple[str, ...] | None = None) -> DeviceMesh:
        """A device mesh of all ranks; without a shape, one dimension."""
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(self.device_type, shape or (self.size,), mesh_dim_names=names)


@contextmanager
def fake_world(world_size: int, rank: int = 0, device_type: str = "cpu") -> Iterator[World]:
    """Inside, torch.distributed is initialised as rank `rank` of `world_size`, and collectives only pretend.

    Shapes are right and values are not: capture inside, compute elsewhere. Meshes and groups made inside belong to this
    world, so build the model inside as well. Groups are named in the order of their making, alike on every rank. On
    leaving, also by an exception, the groups are destroyed, and torch forgets their meshes and all compiled code.
    """
    _check_world(world_size, rank)
    _torch.forget_meshes()
    dist.init_process_group("fake", store=_torch.fake_store(), rank=rank, world_size=world_size)
    try:
        yield World(world_size, rank, device_type)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        _torch.forget_meshes()
        torch.compiler.reset()


def _check_world(world_size: int, rank: int) -> None:
    if world_size < 1:
        raise OptionError(f"world_size is {world_size}", where="fake_world", next_step="give the number of ranks")
    if not 0 <= rank < world_size:
        raise OptionError(
            f"there is no rank {rank} in a world of {world_size}",
            where="fake_world",
            next_step=f"choose a rank from 0 to {world_size - 1}",
        )
    if dist.is_initialized():
        raise GroupError(
            f"a process group of {dist.get_world_size()} ranks (backend {dist.get_backend()}) is already initialised",
            where="fake_world",
            next_step="capture in it without fake_world, or leave it first: torch.distributed.destroy_process_group()",
        )


def current_world(where: str) -> World:
    """The world of the process group that is initialised now; GroupError when there is none."""
    if not dist.is_initialized():
        raise GroupError(
            "no process group is initialised, so there is nobody to communicate with",
            where=where,
            next_step="build and capture the model inside `with counterpoint.fake_world(8):`, "
            "or call torch.distributed.init_process_group() first",
        )
    return World(dist.get_world_size(), dist.get_rank())


def groups_of(gm: GraphModule) -> dict[str, tuple[int, ...]]:
    """The global ranks of every named group that a graph, or one inside it, communicates in; in order of first use."""
    groups: dict[str, tuple[int, ...]] = {}
    for module in gm.modules():
        if isinstance(module, GraphModule):
            for name, node in _named_groups(module.graph):
                if name not in groups:
                    groups[name] = _ranks(name, node)
    return groups


def _named_groups(graph: Graph) -> Iterator[tuple[str, Node]]:
    for node in graph.nodes:
        spec = ops.spec_of(node.target) if ops.is_collective(node) else None
        if spec is not None and spec.group is not None:
            name = group_of(ops.argument(node, spec.group)).name
            if name is not None:
                yield name, node


def _ranks(name: str, node: Node) -> tuple[int, ...]:
    try:
        return _torch.process_group_ranks(name)
    except LookupError as error:
        raise GroupError(
            f"the graph communicates in group {name!r}, which does not exist in this process",
            where=f"node {node.name}",
            next_step="build the model and capture it in the same world",
        ) from error
