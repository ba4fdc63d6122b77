"""Lower bounds: by hand, and against every order that a small graph has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Node

from counterpoint.cost.link import Link
from counterpoint.cost.model import CostModel
from counterpoint.cost.processor import Processor
from counterpoint.cost.topology import Level, Topology
from counterpoint.ir.alias import Hazards
from counterpoint.ir.build import GraphBuilder
from counterpoint.schedule.work import Work, read_work
from counterpoint.sim.bounds import Job, bounds_of, one_stream_us
from counterpoint.sim.least import least_bounds
from counterpoint.sim.simulator import simulate, step_of

ATEN = torch.ops.aten
C10D = torch.ops._c10d_functional


def model(launch_us: float, latency_us: float) -> CostModel:
    """A byte a nanosecond everywhere."""
    link = Link(latency_us=latency_us, bandwidth_gbps=8)
    return CostModel(
        topology=Topology(
            name="plain",
            levels=(Level(name="network", ways=(link,)),),
            processor=Processor(gflops=1, memory_gb_per_s=1, launch_us=launch_us),
        ),
        fuses=False,
    )


def orders(work: Sequence[Work], before: dict[Node, set[Node]]) -> Iterator[list[Work]]:
    """Every order in which each node stands behind what it needs."""
    if not work:
        yield []
        return
    for k, item in enumerate(work):
        if not before[item.node] & {other.node for other in work}:
            for rest in orders([*work[:k], *work[k + 1 :]], before):
                yield [item, *rest]


@st.composite
def small_steps(draw) -> tuple[GraphBuilder, list[Node]]:
    """A few additions and gathers over two groups, each of some earlier results."""
    b = GraphBuilder({"dp": (0, 1), "tp": (0, 1)})
    tensors = [b.input("x", (draw(st.integers(1, 9)) * 1000,))]
    for _ in range(draw(st.integers(1, 3))):
        source = draw(st.sampled_from(tensors))
        if draw(st.booleans()):
            group = draw(st.sampled_from(["dp", "tp"]))
            part = b.call(ATEN.slice.Tensor, source, 0, 0, 1000)
            tensors.append(b.wait(b.call(C10D.all_gather_into_tensor.default, part, 2, group)))
        else:
            other = draw(st.sampled_from(tensors))
            tensors.append(b.call(ATEN.cat.default, [source, other]))
    return b, tensors


@settings(max_examples=80, deadline=None)
@given(small_steps(), st.sampled_from([0.0, 2.5]), st.sampled_from([0.0, 3.0]), st.booleans())
def test_no_order_beats_the_bound(step, launch_us: float, latency_us: float, sharing: bool) -> None:
    b, tensors = step
    gm = b.finish(*tensors)
    nodes = list(gm.graph.nodes)
    work = read_work(gm.graph, model(launch_us, latency_us), b.groups)
    edges = Hazards.of(gm.graph).order_edges(nodes)
    bound = bounds_of(work, edges).step_us
    before = {node: {*node.all_input_nodes, *edges.get(node, ())} for node in nodes}
    movable = [item for item in work if item.node.op == "call_function"]
    fastest = min(step_of(order, sharing=sharing) for order in orders(movable, before))
    assert bound <= fastest * (1 + 1e-9)


@st.composite
def exchanges(draw) -> tuple[GraphBuilder, list[Node]]:
    """What one gather brings, used several times at once for the next; and something that needs neither."""
    b = GraphBuilder({"dp": (0, 1), "tp": (0, 1)})
    value = b.input("x", (draw(st.integers(1, 5)) * 1000,))
    left = [b.call(ATEN.cat.default, [value, value])] if draw(st.booleans()) else []
    for _ in range(2):
        part = b.call(ATEN.slice.Tensor, value, 0, 0, draw(st.integers(1, 4)) * 500)
        value = b.wait(b.call(C10D.all_gather_into_tensor.default, part, 2, "tp"))
        used = [b.call(ATEN.cat.default, [value] * draw(st.integers(1, 3))) for _ in range(draw(st.integers(1, 2)))]
        value = b.call(ATEN.cat.default, used)
    return b, [value, *left]


@settings(max_examples=25, deadline=None)
@given(exchanges(), st.sampled_from([0.0, 2.5]), st.sampled_from([0.0, 3.0]))
def test_no_order_of_a_chain_of_exchanges_beats_the_bound(step, launch_us: float, latency_us: float) -> None:
    test_no_order_beats_the_bound.hypothesis.inner_test(step, launch_us, latency_us, False)  # type: ignore[attr-defined]


def test_all_that_one_exchange_is_used_for_stands_before_the_next() -> None:
    b = GraphBuilder({"tp": (0, 1)})
    shard = b.input("shard", (1000,))
    whole = b.all_gather(shard, "tp")
    used = [b.call(ATEN.mul.Tensor, whole, k) for k in range(3)]
    part = b.call(ATEN.slice.Tensor, b.call(ATEN.cat.default, used), 0, 0, 1000)
    gm = b.finish(b.all_gather(part, "tp"))
    work = read_work(gm.graph, model(0, 0), b.groups)
    bounds = bounds_of(work, Hazards.of(gm.graph).order_edges(list(gm.graph.nodes)))
    # Two gathers of 4 us, three products of 16 us and one copy of 48: all in a row, as nothing can be beside them.
    assert bounds.critical_path_us == pytest.approx(4 + 3 * 16 + 48 + 4)
    assert simulate(gm, model(0, 0), b.groups).step_us == pytest.approx(bounds.step_us)


@settings(max_examples=30, deadline=None)
@given(small_steps())
def test_the_order_of_the_nodes_does_not_change_the_bound(step) -> None:
    b, tensors = step
    gm = b.finish(*tensors)
    nodes = list(gm.graph.nodes)
    edges = Hazards.of(gm.graph).order_edges(nodes)
    before = {node: {*node.all_input_nodes, *edges.get(node, ())} for node in nodes}
    work = read_work(gm.graph, model(1, 1), b.groups)
    ends = [item for item in work if item.node.op == "output"]
    some = [bounds_of([*order, *ends], edges) for order, _ in zip(orders(work[:-1], before), range(20), strict=False)]
    assert all(one.step_us == pytest.approx(some[0].step_us) for one in some)


def schedule_us(jobs: Sequence[Job]) -> float:
    """The best length of all orders in which one stream can do the jobs without interruption."""
    lengths = []
    for order in permutations(jobs):
        now, longest = 0.0, 0.0
        for job in order:
            now = max(now, job.head_us) + job.us
            longest = max(longest, now + job.tail_us)
        lengths.append(longest)
    return min(lengths, default=0.0)


def subsets_us(jobs: Sequence[Job]) -> float:
    """The bound by its definition: for every choice of jobs the first head, all the work and the least tail."""
    found = [0.0]
    for mask in range(1, 1 << len(jobs)):
        chosen = [job for k, job in enumerate(jobs) if mask >> k & 1]
        heads, tails = [job.head_us for job in chosen], [job.tail_us for job in chosen]
        found.append(min(heads) + sum(job.us for job in chosen) + min(tails))
    return max(found)


JOBS = st.lists(st.builds(Job, st.integers(0, 20), st.integers(1, 9), st.integers(0, 20)), max_size=6)


@given(JOBS)
def test_one_stream_is_the_best_of_all_choices_of_first_and_last(jobs: list[Job]) -> None:
    assert one_stream_us(jobs) == subsets_us(jobs) <= schedule_us(jobs)


@pytest.mark.parametrize(
    ("latency_us", "gather_us", "bound_us"),
    [
        # The first addition has to wait for one gather, so the compute stream needs 4 us and four times 24.
        (0, 4, 4 + 4 * 24),
        # The last gather must be followed by an addition, so the channel needs four times 34 and 24.
        (30, 34, 4 * 34 + 24),
    ],
)
def test_what_must_be_first_and_last_counts(latency_us: float, gather_us: float, bound_us: float) -> None:
    b = GraphBuilder({"dp": (0, 1)})
    shards = [b.input(f"shard{k}", (1000,)) for k in range(4)]
    flow = b.input("flow", (2000,))
    for shard in shards:
        flow = b.call(ATEN.add.Tensor, flow, b.all_gather(shard, "dp"))
    timeline = simulate(b.finish(flow), model(0, latency_us), b.groups)
    assert timeline.bounds.critical_path_us == timeline.bounds.compute_us == gather_us + 4 * 24
    assert timeline.bounds.step_us == bound_us
    assert timeline.step_us == 4 * (gather_us + 24)


@settings(max_examples=40, deadline=None)
@given(small_steps(), st.sampled_from([0.0, 3.0]))
def test_merging_saves_no_more_than_latency_and_launches(step, latency_us: float) -> None:
    b, tensors = step
    gm = b.finish(*tensors)
    one, least = (simulate(gm, model(2, latency_us), b.groups).bounds, least_bounds(gm, model(2, latency_us), b.groups))
    free = simulate(gm, model(0, 0), b.groups).bounds
    assert least.step_us <= one.step_us * (1 + 1e-9)
    assert least.step_us == pytest.approx(free.step_us)
