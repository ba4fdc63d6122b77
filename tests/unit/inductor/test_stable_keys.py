"""What Python's random hashes leave in device meshes is taken out before torch makes a cache key of them."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import torch

from counterpoint.capture.world import fake_world
from counterpoint.inductor.stable_keys import forget_mesh_hashes


def test_meshes_and_those_they_refer_to_forget_their_hashes() -> None:
    with fake_world(4) as world:
        whole = world.mesh(2, 2, names=("a", "b"))
        part = whole["a"]
        hash(whole), hash(part)
        wrapped = SimpleNamespace(real_obj=part)
        forget_mesh_hashes([torch.ones(1), 3, wrapped])
        assert part._hash is None
        assert whole._hash is None


def test_the_mesh_itself_stays_as_it_was() -> None:
    with fake_world(4) as world:
        mesh = world.mesh(2, 2, names=("a", "b"))
        before = hash(mesh)
        forget_mesh_hashes([mesh])
        bare = pickle.dumps(mesh.mesh)
        assert hash(mesh) == before
        assert pickle.dumps(mesh.mesh) == bare
