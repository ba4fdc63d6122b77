"""`replicate` and `fully_shard` in one process: what they change on a module, what they leave, and what they refuse."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

from counterpoint import fully_shard, replicate
from counterpoint.capture.collectives import Cut, Ranks, _division
from counterpoint.capture.world import fake_world
from counterpoint.errors import CaptureError, GroupError, OptionError

WRAPPERS = [fully_shard, replicate]


@pytest.fixture
def world():
    with fake_world(4) as world:
        yield world


# ---- what changes, and what does not ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_names_stay_and_the_class_stays_a_child_of_its_own(world, wrapper):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    names = list(model.state_dict())
    assert wrapper(model) is model
    assert list(model.state_dict()) == names
    assert isinstance(model[0], nn.Linear)
    assert type(model[0]) is type(model[2])
    assert type(model[1]) is nn.ReLU  # it holds nothing to wrap


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_parameter_shows_itself_outside_of_a_forward_and_its_whole_inside(world, wrapper):
    seen = []

    class Peeking(nn.Linear):
        def forward(self, x):
            seen.append((type(self.weight), tuple(self.weight.shape), self.weight.is_leaf))
            return super().forward(x)

    model = wrapper(Peeking(4, 6))
    assert model.weight is dict(model.named_parameters())["weight"]
    model(torch.ones(1, 4))
    assert seen == [(torch.Tensor, (6, 4), False)]
    assert model.weight is dict(model.named_parameters())["weight"]
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 5))
    assert model.weight.is_leaf, "a forward that raises leaves no trace"


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_gradients_land_on_the_registered_parameter_and_not_on_frozen_or_unused_ones(world, wrapper):
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
    model["used"].bias.requires_grad_(False)

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model

        def forward(self, x):
            return self.parts["used"](x)

    holder = wrapper(Holder())
    holder(torch.ones(1, 4)).sum().backward()
    assert [name for name, each in holder.named_parameters() if each.grad is not None] == ["parts.used.weight"]
    grad = holder.parts["used"].weight.grad
    assert isinstance(grad, DTensor) == (wrapper is fully_shard)


def test_without_a_mesh_the_device_is_one_that_is_there(world, monkeypatch):
    def built_for(check_available=False):
        return None if check_available else torch.device("cuda")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", built_for)
    model = fully_shard(nn.Linear(4, 4))
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_shards_follow_torch_chunk_and_may_be_empty():
    for rank, lengths in enumerate([(2, 1), (2, 1), (2, 0), (0, 0)]):
        with fake_world(4, rank):
            model = fully_shard(nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2)))
            assert model[0].weight.placements == (Shard(0),)
            assert model[0].weight.to_local().shape == (lengths[0], 3)
            assert model[1].weight.to_local().shape == (lengths[1], 6)
            assert model[0].weight.shape == (6, 3)


def test_a_two_dimensional_mesh_replicates_then_shards(world):
    model = fully_shard(nn.Linear(3, 6), mesh=world.mesh(2, 2))
    assert model.weight.placements == (Replicate(), Shard(0))
    assert model.weight.to_local().shape == (3, 3)


def test_ignored_parameters_and_modules_stay_as_they_are(world):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    kept = model[0].weight
    fully_shard(model, ignored_params={kept})
    assert model[0].weight is kept
    assert isinstance(model[0].bias, DTensor)
    other = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    replicate(other, [other[0]], ignored_params={other[1].bias})
    assert type(other[0]) is nn.Linear
    assert type(other[1]) is not nn.Linear


def test_replicate_leaves_modules_alone_that_are_already_sharded(world):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(model[0])
    replicate(model)
    assert isinstance(model[0].weight, DTensor)
    assert not isinstance(model[1].weight, DTensor)
    model(torch.ones(1, 4)).sum().backward()


def test_several_modules_form_one_unit(world):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    halves = [model[0], model[1]]
    assert fully_shard(halves) is halves
    assert model[0]._counterpoint.unit is model[1]._counterpoint.unit
    assert not isinstance(model[2].weight, DTensor)


def test_the_outermost_unit_is_the_one_that_keeps_its_parameters(world):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(model[0])
    assert not model[0]._counterpoint.unit.gathers_again
    fully_shard(model)
    assert model[0]._counterpoint.unit.gathers_again
    assert not model._counterpoint.unit.gathers_again
    model.set_reshard_after_forward(True)
    assert model._counterpoint.unit.gathers_again


def test_a_slice_of_a_wrapped_container_is_a_plain_container(world):
    model = fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    assert type(model[:1]) is nn.Sequential
    assert model[:1](torch.ones(1, 4)).shape == (1, 4)


def test_mixed_precision_casts_at_the_border_of_the_unit(world):
    seen = []

    class Spy(nn.Linear):
        def forward(self, x, scale):
            seen.append((x.dtype, scale["by"].dtype, self.weight.dtype))
            return super().forward(x) * scale["by"]

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float64)
    for cast, wrapper in [(True, fully_shard), (True, replicate)]:
        model = wrapper(Spy(4, 4), mp_policy=policy)
        assert model(torch.ones(1, 4), {"by": torch.tensor(2)}).dtype == torch.float64, cast
        assert seen.pop() == (torch.bfloat16, torch.int64, torch.bfloat16)
        model(torch.ones(1, 4), {"by": torch.tensor(2)}).sum().backward()
        assert model.weight.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("dtype", "ranks", "parts"),
    [
        (torch.float32, 1, (1, "sum", 1)),
        (torch.float32, 4, (1, "avg", 1)),
        (torch.bfloat16, 6, (1, "avg", 1)),
        (torch.float16, 4, (2, "sum", 2)),
        (torch.float16, 64, (8, "sum", 8)),
        (torch.float16, 6, (4, "sum", 1.5)),
        (torch.float64, 3, (2, "sum", 1.5)),
    ],
)
def test_the_division_of_a_mean_is_split_where_a_sum_could_overflow(dtype, ranks, parts):
    before, op, after = _division(dtype, ranks)
    assert (before, op, after) == parts
    assert op == "avg" or before * after == ranks


def test_a_cut_pads_to_its_longest_chunk():
    assert [Cut(0, length, Ranks("0", 4)).chunk for length in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_importing_the_package_loads_no_torch():
    code = "import sys, counterpoint; dir(counterpoint); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- what is refused, and leaves the module as it was ----------------------------------------------------------------


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_refuses_what_it_cannot_wrap(world, wrapper):
    wrapped = wrapper(nn.Linear(2, 2))
    replaced = nn.Linear(2, 2)
    replaced.forward = lambda x: x
    refused = {
        "already wrapped": wrapped,
        "no forward of its own": nn.ModuleList([nn.Linear(2, 2)]),
        "past its attributes": nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2)),
        "replaced on the instance": nn.Sequential(replaced),
        "already distributed by torch": torch_fully_shard(nn.Linear(2, 2), mesh=world.mesh()),
    }
    for text, module in refused.items():
        classes = [type(each) for each in module.modules()]
        with pytest.raises(CaptureError, match=text):
            wrapper(module)
        assert [type(each) for each in module.modules()] == classes


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_refuses_to_be_copied_or_pickled(world, wrapper):
    model = wrapper(nn.Linear(2, 2))
    with pytest.raises(CaptureError, match="copied or pickled"):
        copy.deepcopy(model)
    with pytest.raises(CaptureError, match="copied or pickled"):
        pickle.dumps(model)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_refuses_to_leave_gradients_unreduced(world, wrapper):
    model = wrapper(nn.Linear(2, 2))
    model.set_requires_gradient_sync(True)
    with pytest.raises(OptionError, match="without reducing"):
        model.set_requires_gradient_sync(False)


def test_fully_shard_refuses_options_it_does_not_honour(world):
    three = world.mesh(2, 2, 1)
    for text, options in {
        "CPUOffloadPolicy is not supported": {"offload_policy": CPUOffloadPolicy()},
        "asks for a smaller group": {"reshard_after_forward": 2},
        "3 dimensions": {"mesh": three},
        "dp_mesh_dims": {"dp_mesh_dims": object()},
        "did you mean reshard_after_forward": {"reshard_after_foward": True},
        "shard_placement_fn answered": {"shard_placement_fn": lambda parameter: Shard(3)},
    }.items():
        model = nn.Linear(4, 4)
        with pytest.raises(OptionError, match=text):
            fully_shard(model, **options)
        assert type(model) is nn.Linear
        assert not isinstance(model.weight, DTensor)
    with pytest.raises(OptionError, match="order of gathers"):
        fully_shard(nn.Linear(4, 4)).set_modules_to_forward_prefetch([])
    scalar = nn.Linear(4, 4)
    scalar.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
    with pytest.raises(CaptureError, match="scalar"):
        fully_shard(scalar)
    assert not isinstance(scalar.weight, DTensor)


@pytest.mark.parametrize(("given", "stored"), [(None, None), (True, True), (False, False), (1, False), (4, True)])
def test_reshard_after_forward_accepts_integers_that_mean_yes_or_no(world, given, stored):
    assert fully_shard(nn.Linear(4, 4), reshard_after_forward=given)._counterpoint.unit.reshard is stored


def test_replicate_refuses_options_it_does_not_honour(world):
    for text, options in {
        "find_unused_parameters=True is not supported": {"find_unused_parameters": True},
        "bucket_cap_mb=25 is not supported": {"bucket_cap_mb": 25},
        "did you mean process_group": {"proces_group": None},
        "both given": {"device_mesh": world.mesh(), "process_group": torch.distributed.group.WORLD},
        "2 dimensions": {"device_mesh": world.mesh(2, 2)},
    }.items():
        model = nn.Linear(4, 4)
        with pytest.raises(OptionError, match=text):
            replicate(model, **options)
        assert type(model) is nn.Linear
    replicate(nn.Linear(4, 4), static_graph=True, find_unused_parameters=False, bucket_cap_mb=None)
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    with pytest.raises(CaptureError, match="meta device"):
        replicate(model)
    replicate(model, init_sync=False)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_names_the_missing_process_group(wrapper):
    with pytest.raises(GroupError, match="init_process_group"):
        wrapper(nn.Linear(2, 2))
