"""Strict options through `torch.compile`: the compile fails, also when the code comes from the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

from counterpoint.capture.world import fake_world
from counterpoint.report.history import clear_reports, reports


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    clear_reports()
    with fake_world(2):
        yield


def two_sums(x: Tensor) -> Tensor:
    one = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
    return one + funcol.all_reduce(x + 1, "sum", dist.group.WORLD)


def run(passes: str, codegen: str = "eager", **options: Any) -> str:
    """Compile and run; what was raised, or nothing."""
    torch.compiler.reset()
    options |= {"passes": passes, "codegen": codegen}
    try:
        with torch.no_grad():
            torch.compile(two_sums, backend="counterpoint", options=options)(torch.ones(64, 64))
    except BackendCompilerFailed as error:
        return str(error)
    return ""


def test_a_compile_that_does_not_bucket_fails_and_leaves_its_record() -> None:
    said = run("", require_bucketed=True)
    assert "RequirementError: 2 collectives are not bucketed" in said
    assert "inference/all_reduce#0 (no-pass" in said
    assert "in two_sums" in said
    (record,) = reports()
    assert "require_bucketed=True" in record.requested
    assert "require-bucketed=true" in record.in_force["options"]


def test_a_compile_that_buckets_passes() -> None:
    assert run("bucket-all-reduce", require_bucketed=True) == ""


def test_a_limit_of_exposed_time_is_held_or_fails() -> None:
    assert "is exposed, max_exposed_us allows 1 us" in run("bucket-all-reduce", max_exposed_us=1.0)
    assert run("bucket-all-reduce", max_exposed_us=1e6) == ""
    (entry, _) = reports()[-1].ledgers[0].entries
    assert entry.facts.exposed_before_us > entry.exposed_after_us > 0


def test_a_described_cluster_puts_exposed_times_into_the_ledger() -> None:
    assert run("", topology="cpu-1g") == ""
    assert all(entry.exposed_after_us for entry in reports()[-1].ledgers[0])
    assert run("") == ""
    assert all(entry.exposed_after_us is None for entry in reports()[-1].ledgers[0])


@pytest.mark.cxx
def test_a_cache_hit_fails_just_the_same() -> None:
    said = [run("", codegen="inductor", require_bucketed=True) for _ in range(2)]
    miss, hit = reports()
    assert (miss.cache, hit.cache) == ("miss", "hit")
    assert hit.requested == miss.requested
    assert dict(hit.in_force) == dict(miss.in_force)
    assert all("RequirementError: 2 collectives are not bucketed" in text for text in said)
