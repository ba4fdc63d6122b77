"""Which ways a collective has, what each takes, and what is in the way of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from counterpoint.cost.capabilities import NOTHING, Capabilities, CapabilityTable, members_by_host
from counterpoint.cost.described import described_capabilities
from counterpoint.cost.model import CostModel
from counterpoint.cost.presets import PRESETS
from counterpoint.cost.shared_memory import crossing_bytes, host_memory
from counterpoint.cost.ways import Call, Way, ways
from counterpoint.ir.ops import Kind
from tests.support.lowering import one_host, peer_devices, two_hosts

MODEL = CostModel()
MB = 1 << 20


def call(nbytes: int, kind: Kind = Kind.ALL_REDUCE, ranks: int = 4, **changed: Any) -> Call:
    fields = {"dtypes": (torch.float32,), "ranks": tuple(range(ranks)), "device_type": "cpu"}
    return Call(kind=kind, nbytes=(nbytes,), **(fields | changed))


def best(what: Call, found: Capabilities, model: CostModel = MODEL) -> Way:
    return ways(what, found, model).best


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_small_sums_are_one_shot_and_large_ones_two_shot_from_the_crossing_on(ranks: int) -> None:
    crossing = int(crossing_bytes(ranks, host_memory(ranks, ranks)))
    assert best(call(crossing // 2, ranks=ranks), one_host(ranks)) is Way.ONE_SHOT
    assert best(call(crossing * 2, ranks=ranks), one_host(ranks)) is Way.TWO_SHOT


@pytest.mark.parametrize("kind", [Kind.ALL_GATHER, Kind.REDUCE_SCATTER])
def test_gathers_and_scatters_share_memory(kind: Kind) -> None:
    assert best(call(MB, kind), one_host(4)) is Way.SHARED


@pytest.mark.parametrize("kind", [Kind.BROADCAST, Kind.ALL_TO_ALL])
def test_what_has_no_other_form_stays_with_the_library(kind: Kind) -> None:
    found = ways(call(MB, kind), one_host(4), MODEL)
    assert found.best is Way.LIBRARY
    assert list(found.obstacles.values()) == [f"there is no other form of {kind.value}"]


def test_nothing_is_possible_where_nobody_has_looked() -> None:
    found = ways(call(MB), NOTHING, MODEL)
    assert list(found.waits_us) == [Way.LIBRARY]
    assert found.obstacles[Way.ONE_SHOT] == "not probed"


@pytest.mark.parametrize(
    ("reduce_op", "dtype", "fits"),
    [
        ("max", torch.float16, True),
        ("product", torch.int64, True),
        ("bor", torch.int32, True),
        ("bor", torch.float32, False),
        ("avg", torch.bfloat16, True),
        ("avg", torch.int32, False),
        ("sum", torch.complex64, False),
        ("premul_sum", torch.float32, False),
    ],
)
def test_kernels_must_have_the_reduction_of_the_type(reduce_op: str, dtype: torch.dtype, fits: bool) -> None:
    found = ways(call(64, reduce_op=reduce_op, dtypes=(dtype,)), one_host(4), MODEL)
    assert (found.best is not Way.LIBRARY) == fits
    if not fits:
        assert "the kernels have no" in found.obstacles[Way.TWO_SHOT]


def test_a_collective_behind_compute_is_left_there_where_processors_are_to_spare() -> None:
    hidden = call(16 * MB, beside_us=1e6)
    assert best(hidden, one_host(4, processors=64)) is Way.LIBRARY
    # Where they are not, messages take the time that compute needs.
    assert best(hidden, one_host(4, processors=4)) is Way.TWO_SHOT
    assert best(replace(hidden, beside_us=0.0), one_host(4, processors=64)) is Way.TWO_SHOT


def test_measured_links_count() -> None:
    fast = CostModel(latency_us=0.5, bandwidth_gbps=10_000.0)
    assert best(call(MB), one_host(4), fast) is Way.LIBRARY


# -- devices ----------------------------------------------------------------------------------------------------------


def on_devices(nbytes: int, kind: Kind = Kind.ALL_REDUCE, **changed: Any) -> Call:
    fields: dict[str, Any] = {"device_type": "cuda", "dtypes": (torch.bfloat16,), "ranks": 8}
    return call(nbytes, kind, **(fields | changed))


def test_devices_sum_in_one_shot_two_shots_or_through_the_switch() -> None:
    assert best(on_devices(16 << 10), peer_devices(8)) is Way.ONE_SHOT
    assert best(on_devices(MB), peer_devices(8)) is Way.TWO_SHOT
    assert best(on_devices(64 * MB), peer_devices(8, multicast=True)) is Way.MULTICAST
    assert Way.MULTICAST in ways(on_devices(64 * MB), peer_devices(8), MODEL).obstacles


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"reduce_op": "max"}, "only add up"),
        ({"dtypes": (torch.float16,)}, "float32 and bfloat16"),
        ({"nbytes": 30}, "4 bytes at once"),
    ],
)
def test_what_torchs_kernels_cannot_add_stays_with_the_library(changed: dict[str, Any], why: str) -> None:
    nbytes = changed.pop("nbytes", 16 << 10)
    found = ways(on_devices(nbytes, **changed), peer_devices(8), MODEL)
    assert found.best is Way.LIBRARY
    assert why in found.obstacles[Way.ONE_SHOT]


def test_copy_engines_carry_gathers_next_to_heavy_compute() -> None:
    gather = on_devices(64 * MB, Kind.ALL_GATHER, beside_us=5000.0)
    assert best(gather, peer_devices(8)) is Way.COPY_ENGINE
    scatter = replace(gather, kind=Kind.REDUCE_SCATTER)
    assert best(scatter, peer_devices(8)) is Way.COPY_ENGINE
    found = ways(replace(scatter, reduce_op="max"), peer_devices(8), MODEL)
    assert found.obstacles[Way.COPY_ENGINE] == "torch scatters sums and averages, not max"


# -- hosts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "members"),
    [
        ((0, 0, 1, 1), 2),
        ((0, 0, 0, 1, 1, 1), 3),
        ((0, 0), None),
        ((0, 1), None),
        ((0, 1, 0, 1), None),
        ((0, 0, 1), None),
        ((), None),
    ],
)
def test_members_by_host(hosts: tuple[int, ...], members: int | None) -> None:
    assert members_by_host(hosts) == members


@pytest.mark.parametrize("kind", [Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER])
def test_groups_on_several_hosts_work_inside_them_first(kind: Kind) -> None:
    assert best(call(4 * MB, kind), two_hosts(4)) is Way.HIERARCHICAL
    assert Way.HIERARCHICAL in ways(call(4 * MB, kind), one_host(4), MODEL).obstacles


# -- tables -----------------------------------------------------------------------------------------------------------


def test_the_text_of_a_table_tells_apart_what_decides() -> None:
    groups = [one_host(4), one_host(4, processors=2), two_hosts(4), peer_devices(4), peer_devices(4, multicast=True)]
    texts = {CapabilityTable({("tp", "cpu"): found}).text for found in groups}
    assert len(texts) == len(groups)


def test_it_says_nothing_of_ranks() -> None:
    one, other = one_host(2), replace(one_host(2), shared_memory=replace(one_host(2).shared_memory, reason="rank 3"))
    assert one.text == other.text


def test_a_topology_describes_what_devices_can_do() -> None:
    cluster = PRESETS["h200x8-ib400"]
    inside = described_capabilities(cluster, range(8))
    assert inside.symmetric_memory
    assert inside.hosts == (0,) * 8
    across = described_capabilities(cluster, range(16))
    assert not across.symmetric_memory
    assert members_by_host(across.hosts) == 8
    assert described_capabilities(None, range(8)) is NOTHING
