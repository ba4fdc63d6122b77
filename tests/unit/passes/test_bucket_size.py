"""The size of buckets: one where latency rules, none where bandwidth does, near the best fixed choice in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoint.cost.compute import PROCESSORS
from counterpoint.cost.link import Link
from counterpoint.cost.measured import MeasuredTable, curve_of
from counterpoint.cost.model import CostModel
from counterpoint.cost.table import LinkTable
from counterpoint.cost.topology import Level, Topology
from counterpoint.ir.build import GraphBuilder, collectives_in
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.ops import Kind
from counterpoint.options import CompileOptions
from counterpoint.passes.bucket_size import Caps, Item, Terms, choose_caps, rule_bytes, split, step_us
from counterpoint.passes.pipeline import Pipeline, run_pipeline

MB = 2**20
LOOPBACK = Link(latency_us=1000, bandwidth_gbps=6.5)
CPU = PROCESSORS["cpu"]
GIGABIT = Link(latency_us=400, bandwidth_gbps=0.95)
KINDS = (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL)


def terms(kind: Kind, link: Link, compute_us: float = 0.0, *, ranks: int = 2, packs: bool = True) -> Terms:
    return Terms(kind=kind, ranks=ranks, link=link, processor=CPU, compute_us=compute_us, packs=packs)


def gradients(sizes: list[int], compute_us: float) -> list[Item]:
    """Results of a backward: one after the other, used at the end."""
    each = compute_us / max(len(sizes), 1)
    return [Item(n, each * (k + 1), each * (k + 1), compute_us) for k, n in enumerate(sizes)]


def parameters(sizes: list[int], compute_us: float) -> list[Item]:
    """Shards of a forward: all there from the beginning, each used by its layer."""
    each = compute_us / max(len(sizes), 1)
    return [Item(n, each * k, 0.0, each * k) for k, n in enumerate(sizes)]


def best_fixed(items: list[Item], with_terms: Terms) -> float:
    """The best step with any one cap for all buckets."""
    total = sum(item.nbytes for item in items)
    caps = {1, total, *(2**power for power in range(8, 40) if 2**power < total)}
    return min(step_us(items, Caps(cap, cap), with_terms) for cap in caps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compute_us", [0, 2_000, 5_000])
def test_many_small_tensors_on_a_slow_starting_link_become_a_handful_of_buckets(kind: Kind, compute_us: float) -> None:
    items = gradients([16_900] * 160, compute_us)
    chosen = choose_caps(items, terms(kind, LOOPBACK, compute_us))
    assert len(list(split(items, chosen))) <= 5


@pytest.mark.parametrize("kind", KINDS)
def test_large_tensors_on_a_slow_link_hardly_share(kind: Kind) -> None:
    items = gradients([2 * MB] * 16, 50_000)
    assert len(list(split(items, choose_caps(items, terms(kind, GIGABIT, 50_000))))) >= 8


def test_small_tensors_on_a_slow_link_share_just_enough() -> None:
    items = gradients([64 * 1024] * 512, 50_000)
    chosen = choose_caps(items, terms(Kind.ALL_REDUCE, GIGABIT, 50_000))
    assert 0.1 * MB < chosen.rest_bytes <= rule_bytes(Kind.ALL_REDUCE, 2, GIGABIT, CPU) < 4 * MB


SIZES = st.lists(st.integers(1, 8 * MB), min_size=1, max_size=40)
LINKS = st.builds(Link, latency_us=st.floats(1, 5000), bandwidth_gbps=st.floats(0.1, 1000))


@given(SIZES, LINKS, st.sampled_from(KINDS), st.floats(0, 1e6), st.booleans(), st.sampled_from([gradients, parameters]))
def test_never_more_than_a_twentieth_behind_the_best_fixed_cap(sizes, link, kind, compute_us, packs, order) -> None:
    items, given_terms = order(sizes, compute_us), terms(kind, link, compute_us, packs=packs)
    chosen = choose_caps(items, given_terms)
    assert step_us(items, chosen, given_terms) <= 1.05 * best_fixed(items, given_terms)


@given(SIZES, LINKS, st.sampled_from(KINDS), st.floats(0, 1e6))
def test_caps_are_bounded_by_the_rule_and_by_what_there_is(sizes, link, kind, compute_us) -> None:
    chosen = choose_caps(gradients(sizes, compute_us), terms(kind, link, compute_us))
    assert 1 <= chosen.first_bytes <= chosen.rest_bytes <= rule_bytes(kind, 2, link, CPU)


@given(LINKS, st.floats(1, 1000), st.sampled_from(KINDS), st.integers(2, 64))
def test_the_rule_grows_with_latency_and_with_bandwidth(link: Link, factor: float, kind: Kind, ranks: int) -> None:
    slower = Link(latency_us=link.latency_us * factor, bandwidth_gbps=link.bandwidth_gbps)
    wider = Link(latency_us=link.latency_us, bandwidth_gbps=link.bandwidth_gbps * factor)
    assert rule_bytes(kind, ranks, link, CPU) <= min(
        rule_bytes(kind, ranks, slower, CPU), rule_bytes(kind, ranks, wider, CPU)
    )


@given(SIZES, st.integers(0, 64 * MB), st.integers(0, 64 * MB))
def test_a_split_keeps_every_item_in_order_and_under_its_cap(sizes: list[int], first: int, rest: int) -> None:
    items, caps = gradients(sizes, 0.0), Caps(first, rest)
    parts = list(split(items, caps))
    assert [item for part in parts for item in part] == items
    assert all(len(p) == 1 or sum(i.nbytes for i in p) <= caps(k) for k, p in enumerate(parts))


# ---- in a pipeline --------------------------------------------------------------------------------------------------


def collectives_left(
    pipeline: str, options: str = "", topology: LinkTable | None = None, cost_model: CostModel | None = None
) -> int:
    b = GraphBuilder({"dp": (0, 1)})
    grads = [b.input(f"g{k}", (512, 1024)) for k in range(8)]
    gm = b.finish(*(b.all_reduce(grad, "sum", "dp") for grad in grads))
    run_pipeline(
        gm,
        Pipeline.parse(pipeline),
        options=CompileOptions.parse(f"on-error=raise {options}"),
        groups=GroupTable({"dp": (0, 1)}),
        topology=topology,
        cost_model=cost_model,
    )
    return len(collectives_in(gm.graph))


def test_the_default_cap_follows_the_options() -> None:
    assert collectives_left("bucket-all-reduce", "latency-us=20000 bandwidth-gbps=10") == 1
    assert collectives_left("bucket-all-reduce", "latency-us=100 bandwidth-gbps=1") == 8


def test_the_default_cap_follows_the_measured_table() -> None:
    slow_start, slow = Link(latency_us=20000, bandwidth_gbps=10), Link(latency_us=100, bandwidth_gbps=1)
    assert collectives_left("bucket-all-reduce", topology=LinkTable({(0, 1): slow_start})) == 1
    assert collectives_left("bucket-all-reduce", topology=LinkTable({(0, 1): slow})) == 8


@pytest.mark.parametrize(("step_us", "gbps", "left"), [(20000, 10, 1), (100, 1, 8)])
def test_the_default_cap_follows_a_topology_as_it_does_a_link(step_us: float, gbps: float, left: int) -> None:
    level = Level(name="network", ways=(Link(latency_us=step_us, bandwidth_gbps=gbps),))
    place = Topology(name="flat", levels=(level,), processor=CPU, device_type="cpu")
    assert collectives_left("bucket-all-reduce", cost_model=CostModel(topology=place)) == left


@pytest.mark.parametrize(("call_us", "left"), [(30_000, 1), (100, 8)])
def test_the_default_cap_follows_measured_times(call_us: float, left: int) -> None:
    points = curve_of([(1024, call_us), (4 * MB, call_us + 40_000), (64 * MB, call_us + 640_000)])
    table = MeasuredTable({(Kind.ALL_REDUCE, (0, 1)): points})
    assert collectives_left("bucket-all-reduce", cost_model=CostModel(table=table)) == left


def test_a_model_that_knows_of_no_cluster_changes_nothing() -> None:
    for options in ("latency-us=20000 bandwidth-gbps=10", "latency-us=100 bandwidth-gbps=1"):
        model = CostModel.of(CompileOptions.parse(options))
        assert collectives_left("bucket-all-reduce", options, cost_model=model) == collectives_left(
            "bucket-all-reduce", options
        )


def test_a_given_cap_is_taken_whatever_the_link() -> None:
    assert collectives_left("bucket-all-reduce{cap-mb=4}", "latency-us=20000 bandwidth-gbps=10") == 4


@pytest.mark.parametrize("written", ["bucket-all-gather{cap-mb=auto}", "bucket-all-gather{cap-mb=none}"])
def test_auto_is_the_default_and_has_a_text(written: str) -> None:
    assert Pipeline.parse(written).text == "bucket-all-gather"
