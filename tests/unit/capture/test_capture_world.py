"""Pretended worlds: any size, and nothing of them left behind."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from counterpoint.capture.world import current_world, fake_world
from counterpoint.errors import GroupError, OptionError


@pytest.mark.parametrize("size", [2, 8, 1024])
def test_world_has_the_size_asked_for(size: int) -> None:
    with fake_world(size, rank=size - 1) as world:
        assert (dist.get_world_size(), dist.get_rank()) == (size, size - 1) == (world.size, world.rank)
        assert current_world("test") == world
        assert world.mesh().size() == size
    assert not dist.is_initialized()


def test_world_ends_with_an_exception() -> None:
    with pytest.raises(LookupError), fake_world(4):
        raise LookupError
    assert not dist.is_initialized()
    with fake_world(2):
        assert dist.get_world_size() == 2


def test_world_ends_where_the_group_was_destroyed_inside() -> None:
    with fake_world(4):
        dist.destroy_process_group()
    assert not dist.is_initialized()


@pytest.mark.parametrize(("size", "rank"), [(0, 0), (4, 4), (4, -1)])
def test_impossible_worlds_are_refused(size: int, rank: int) -> None:
    with pytest.raises(OptionError), fake_world(size, rank):
        pass
    assert not dist.is_initialized()


def test_second_world_is_refused_and_the_first_stays() -> None:
    with fake_world(4):
        with pytest.raises(GroupError, match="already initialised"), fake_world(8):
            pass
        assert dist.get_world_size() == 4


def test_no_process_group_is_said() -> None:
    with pytest.raises(GroupError, match="fake_world"):
        current_world("test")


def test_groups_are_named_alike_on_every_rank_and_run() -> None:
    seen = []
    for rank in (0, 3, 0):
        with fake_world(8, rank) as world:
            mesh = world.mesh(2, 4, names=("a", "b"))
            groups = [mesh.get_group(name) for name in "ab"]
            seen.append({group.group_name: dist.get_process_group_ranks(group) for group in groups})
    first, other, again = seen
    assert first == again
    assert [rank for ranks in other.values() for rank in ranks].count(3) == 2
    assert all(other[name] == ranks for name, ranks in first.items() if name in other)


def test_meshes_of_an_earlier_world_are_forgotten() -> None:
    """DTensor takes meshes with the same layout for equal; after a group more or less, their groups are not."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    names = []
    for extra_groups in (0, 1):
        with fake_world(4) as world:
            for _ in range(extra_groups):
                dist.new_group([0, 1])
            mesh = world.mesh(2, 2, names=("a", "b"))
            tensor = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Replicate()], src_data_rank=None)
            result = (tensor + tensor).device_mesh
            names.append((result.get_group("a").group_name, mesh.get_group("a").group_name))
    assert all(used == made for used, made in names)
    assert names[0] != names[1]
