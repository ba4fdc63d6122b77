"""Fences: applied for what our pipeline does, never against the user, never a key that this torch lacks."""

from __future__ import annotations

import pytest
from torch._inductor import config as inductor_config

from counterpoint.inductor import fences
from counterpoint.passes.contract import provided_by
from counterpoint.passes.pipeline import DEFAULT_PIPELINE, Pipeline
from counterpoint.passes.registry import REGISTRY


def _standing(passes: str) -> set[str]:
    """The fences that a pipeline puts up and an empty one does not."""
    provided = frozenset().union(*(provided_by(item) for item in Pipeline.parse(passes).passes))
    return set(fences.fence_patches(provided, {})) - set(fences.fence_patches((), {}))


@pytest.mark.parametrize(
    ("passes", "fenced"),
    [
        ("fuse-ddp", {"_fuse_ddp_communication"}),
        ("bucket-all-gather", {"bucket_all_gathers_fx"}),
        ("bucket-reduce-scatter", {"bucket_reduce_scatters_fx"}),
        ("bucket-all-reduce", {"bucket_all_reduces_fx"}),
        ("schedule-waits", {"reorder_for_peak_memory"}),
        ("dedup-collectives,bucket-all-to-all,verify-graph", set()),
    ],
)
def test_each_pass_fences_off_what_it_repeats_and_nothing_else(passes: str, fenced: set[str]) -> None:
    assert _standing(passes) == fenced


def test_the_default_pipeline_fences_off_fusion_and_bucketing() -> None:
    fenced = {"_fuse_ddp_communication", *(key for key in fences.WATCHED if key.startswith("bucket_"))}
    assert _standing(DEFAULT_PIPELINE) >= fenced


def test_every_capability_of_a_fence_is_provided_by_a_pass() -> None:
    provided = frozenset().union(*(provided_by(item) for item in REGISTRY))
    # A name that is merely written differently would stand here for good.
    wanted = [(one,) if isinstance(one, str) else one for one in (fence.capability for fence in fences.FENCES) if one]
    assert {name for names in wanted for name in names} <= provided


def test_torch_keeps_its_own_pass_until_ours_provides_the_same() -> None:
    assert "_fuse_ddp_communication" not in fences.fence_patches((), {})


def test_a_pass_of_ours_fences_off_the_pass_that_repeats_it() -> None:
    assert fences.fence_patches({"fused-gradients"}, {})["_fuse_ddp_communication"] is False


def test_a_value_that_the_user_chose_stands() -> None:
    assert fences.fence_patches({"fused-gradients"}, {"_fuse_ddp_communication": True}) == fences.fence_patches((), {})


def test_keys_that_this_torch_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (fences.Fence("no_such_setting.of_any_version", False, None, "because"),)
    monkeypatch.setattr(fences, "FENCES", rows)
    assert fences.fence_patches((), {}) == {}


def test_every_patch_is_one_that_inductor_takes() -> None:
    everything = {fence.capability for fence in fences.FENCES if isinstance(fence.capability, str)}
    patches = fences.fence_patches(everything, {})
    assert len(patches) > 3
    with inductor_config.patch(patches):
        assert fences.torch_passes_on({}) == ()


def test_simple_overlap_is_off_wherever_torch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fences, "has_setting", lambda key: True)
    assert fences.fence_patches((), {}) == {"aten_distributed_optimizations.enable_simple_overlap": False}


@pytest.mark.parametrize("provided", ["delayed-waits", "overlap-schedule"])
def test_a_fence_may_stand_for_several_passes(provided: str) -> None:
    assert fences.fence_patches({provided}, {})["reorder_for_peak_memory"] is False
    assert "reorder_for_peak_memory" not in fences.fence_patches({"fused-all-reduce"}, {})


def test_passes_of_torch_that_touch_collectives_are_named_when_on() -> None:
    # On by default from torch 2.14.
    simple = {"aten_distributed_optimizations.enable_simple_overlap": False}
    off = {key: value for key, value in simple.items() if fences.has_setting(key)}
    with inductor_config.patch({"_fuse_ddp_communication": True, "bucket_all_gathers_fx": "all", **off}):
        assert fences.torch_passes_on({}) == ("_fuse_ddp_communication", "bucket_all_gathers_fx")
        assert fences.torch_passes_on({"bucket_all_gathers_fx": "none"}) == ("_fuse_ddp_communication",)


def test_every_fence_has_a_reason_and_a_key_of_its_own() -> None:
    assert all(len(fence.reason) > 20 for fence in fences.FENCES)
    assert len({fence.key for fence in fences.FENCES}) == len(fences.FENCES)
