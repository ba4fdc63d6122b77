"""The simulator against steps worked out by hand, and what must hold of every step it plays."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule, Node

from counterpoint.cost.link import Link
from counterpoint.cost.model import CostModel
from counterpoint.cost.presets import topology
from counterpoint.cost.processor import Processor
from counterpoint.cost.topology import Level, Topology
from counterpoint.errors import OptionError
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.groups import GroupTable
from counterpoint.sim.simulator import simulate
from counterpoint.sim.timeline import COMPUTE, Timeline
from tests.support.strategies import distributed_graphs

ATEN = torch.ops.aten
C10D = torch.ops._c10d_functional

# One operation a nanosecond, one byte a nanosecond, a link of one byte a nanosecond and no latency: easy to add up.
UNIT = Processor(gflops=1, memory_gb_per_s=1, launch_us=0)
WIRE = Link(latency_us=0, bandwidth_gbps=8)
PLAIN = Topology(name="plain", levels=(Level(name="network", ways=(WIRE,)),), processor=UNIT)
MODEL = CostModel(topology=PLAIN, fuses=False)


def with_launch(us: float) -> CostModel:
    return replace(MODEL, topology=replace(PLAIN, processor=replace(UNIT, launch_us=us)))


class Builder(GraphBuilder):
    """Vectors of a thousand floats; an addition of two of them takes 12 us, a gather over two ranks of one 4 us."""

    def __init__(self) -> None:
        super().__init__({"dp": (0, 1), "tp": (0, 1)})
        self.x = self.input("x", (1000,))

    def work(self, *sources: Node) -> Node:
        first, second = (*sources, *sources)[:2]
        return self.call(ATEN.add.Tensor, first, second)

    def start(self, tensor: Node, group: str = "dp") -> Node:
        return self.call(C10D.all_gather_into_tensor.default, tensor, 2, group)


def test_what_is_waited_for_at_once_is_exposed() -> None:
    b = Builder()
    gathered = b.wait(b.start(b.work(b.x)))
    timeline = simulate(b.finish(gathered), MODEL, b.groups)
    # x + x reads one operand once: 4 + 4 us. Then half of 8,000 bytes crosses the wire.
    assert timeline.compute_us == pytest.approx(8)
    assert timeline.exposed_us == pytest.approx(4)
    assert timeline.step_us == pytest.approx(12) == timeline.bounds.step_us


def test_work_between_start_and_wait_hides_it() -> None:
    b = Builder()
    started = b.start(b.x)
    done = b.work(b.x)
    timeline = simulate(b.finish(b.wait(started), done), MODEL, b.groups)
    assert (timeline.step_us, timeline.exposed_us) == (pytest.approx(8), pytest.approx(0))


def test_a_launch_costs_the_compute_stream_and_delays_the_collective() -> None:
    b = Builder()
    timeline = simulate(b.finish(b.wait(b.start(b.x))), with_launch(3), b.groups)
    launch, gather, wait = timeline.spans
    assert (launch.kind, launch.start_us, launch.end_us) == ("launch", 0, 3)
    assert (gather.lane, gather.start_us, gather.end_us) == ("group dp", 3, 7)
    assert (wait.kind, wait.end_us, gather.exposed_us) == ("wait", 7, 4)
    assert timeline.compute_us == 3


@pytest.mark.parametrize(("second", "step_us"), [("dp", 8), ("tp", 4)])
def test_one_group_is_one_channel_and_two_groups_are_two(second: str, step_us: float) -> None:
    b = Builder()
    starts = [b.start(b.x, "dp"), b.start(b.x, second)]
    timeline = simulate(b.finish(*map(b.wait, starts)), MODEL, b.groups)
    assert timeline.step_us == pytest.approx(step_us)


def test_groups_that_share_their_links_slow_each_other_down() -> None:
    b = Builder()
    starts = [b.start(b.x, "dp"), b.start(b.x, "tp")]
    gm = b.finish(*map(b.wait, starts))
    timeline = simulate(gm, MODEL, b.groups, sharing=True)
    assert [(s.start_us, s.end_us) for s in timeline.collectives] == [(0, pytest.approx(8)), (0, pytest.approx(8))]


def test_sharing_ends_when_one_of_them_does() -> None:
    b = Builder()
    long, short = b.start(b.x, "dp"), b.start(b.call(ATEN.slice.Tensor, b.x, 0, 0, 500), "tp")
    timeline = simulate(b.finish(b.wait(long), b.wait(short)), MODEL, b.groups, sharing=True)
    # Both at half speed until the short one is over at 4 us, when the long one has done 2 of its 4.
    assert [s.end_us for s in timeline.collectives] == [pytest.approx(6), pytest.approx(4)]


def test_what_nobody_waits_for_still_ends_within_the_step() -> None:
    b = Builder()
    b.start(b.x)
    timeline = simulate(b.finish(b.x), MODEL, b.groups)
    assert timeline.step_us == timeline.exposed_us == pytest.approx(4)


def test_memory_rises_with_results_and_falls_after_their_last_use() -> None:
    b = Builder()
    first = b.work(b.x)
    second = b.work(first)
    third = b.work(second)
    timeline = simulate(b.finish(third), MODEL, b.groups)
    # The input stays; while an addition runs, its operand and its result are alive.
    assert [nbytes for _, nbytes in timeline.memory] == [4000, 8000, 12000, 8000]
    assert timeline.peak_bytes == 12000
    assert timeline.memory[-1][1] == 8000


def test_a_collective_in_flight_holds_what_it_sends() -> None:
    b = Builder()
    sent = b.work(b.x)
    started = b.start(sent)
    other = b.work(b.x)
    timeline = simulate(b.finish(b.wait(started), other), MODEL, b.groups)
    assert timeline.peak_bytes == 4000 + 4000 + 8000 + 4000


def test_inputs_that_nobody_holds_die_at_their_last_use() -> None:
    b = Builder()
    gm = b.finish(b.work(b.work(b.x)))
    assert simulate(gm, MODEL, b.groups, held=()).peak_bytes == 8000
    assert simulate(gm, MODEL, b.groups).peak_bytes == 12000


def test_a_view_keeps_its_buffer_alive_and_takes_nothing() -> None:
    b = Builder()
    made = b.work(b.x)
    seen = b.call(ATEN.view.default, made, [10, 100])
    other = b.work(b.x)
    timeline = simulate(b.finish(seen, other), MODEL, b.groups)
    assert timeline.peak_bytes == 12000
    assert [span.name for span in timeline.spans] == ["add_tensor", "add_tensor_1"]


def test_an_unknown_operator_is_told_and_counts_as_no_time() -> None:
    b = Builder()
    strange = b.graph.call_function(torch.ops.aten.add.Tensor, (b.x, b.x))
    timeline = simulate(b.finish(strange), MODEL, b.groups)
    assert timeline.unknown == (strange.name,)
    assert timeline.step_us == 0
    assert "1 nodes count as no time" in timeline.notes[0]


@pytest.mark.parametrize("outputs", [0, 1])
def test_graphs_without_work_are_played(outputs: int) -> None:
    b = Builder()
    timeline = simulate(b.finish(*[b.x] * outputs), MODEL, b.groups)
    assert (timeline.step_us, timeline.bounds.step_us, timeline.spans) == (0, 0, ())


def test_an_empty_graph_is_played() -> None:
    graph = Graph()
    assert simulate(graph, MODEL).step_us == 0


def test_symbolic_sizes_count_by_their_hint() -> None:
    b = Builder()
    rows = b.symbol("rows", 1000)
    x = b.input("y", (rows,))
    timeline = simulate(b.finish(b.wait(b.start(x))), MODEL, b.groups)
    assert timeline.step_us == pytest.approx(4)


def test_without_a_topology_it_says_so() -> None:
    b = Builder()
    timeline = simulate(b.finish(b.wait(b.start(b.x))), CostModel())
    assert any("no topology" in note for note in timeline.notes)
    assert any("ranks of the groups are not known" in note for note in timeline.notes)
    assert timeline.step_us > 0


def test_data_and_trace_tell_the_same() -> None:
    b = Builder()
    timeline = simulate(b.finish(b.wait(b.start(b.work(b.x)))), with_launch(1), b.groups, title="small")
    assert Timeline.from_data(json.loads(json.dumps(timeline.to_data()))) == timeline
    events = timeline.chrome_trace()["traceEvents"]
    lanes = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    drawn = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert drawn == [(lanes[span.lane], span.name, span.start_us, span.us) for span in timeline.spans]
    assert list(lanes) == [COMPUTE, "group dp"]


def test_data_of_another_schema_is_refused() -> None:
    with pytest.raises(OptionError, match="schema"):
        Timeline.from_data({"schema": 99})


# ---- whatever the graph ---------------------------------------------------------------------------------------------


def slower(link_factor: float) -> CostModel:
    ways = (Link(latency_us=1, bandwidth_gbps=8 / link_factor),)
    return replace(MODEL, topology=replace(PLAIN, levels=(Level(name="network", ways=ways),)))


@settings(max_examples=60, deadline=None)
@given(distributed_graphs(), st.booleans(), st.sampled_from(["plain", "h100x8-ib400", "cpu-10g"]))
def test_every_step_keeps_the_rules(case, sharing: bool, where: str) -> None:
    model = MODEL if where == "plain" else CostModel(topology=topology(where))
    timeline = simulate(case.gm, model, case.groups, sharing=sharing)
    assert timeline.step_us >= timeline.bounds.step_us * (1 - 1e-9)
    assert timeline.step_us == pytest.approx(timeline.compute_us + timeline.exposed_us)
    assert 0 <= sum(span.exposed_us for span in timeline.spans) <= timeline.exposed_us * (1 + 1e-9) + 1e-9
    assert timeline.peak_bytes == max((nbytes for _, nbytes in timeline.memory), default=0)
    for lane in timeline.lanes:
        spans = [span for span in timeline.spans if span.lane == lane]
        assert all(a.end_us <= b.start_us + 1e-6 for a, b in pairwise(spans))
        assert all(0 <= span.start_us <= span.end_us <= timeline.step_us + 1e-6 for span in spans)
    assert Timeline.from_data(json.loads(json.dumps(timeline.to_data()))) == timeline


@settings(max_examples=40, deadline=None)
@given(distributed_graphs(), st.floats(1, 100), st.floats(1, 100))
def test_more_bandwidth_is_never_slower(case, a: float, b: float) -> None:
    def step(factor: float) -> float:
        return simulate(case.gm, slower(factor), case.groups).step_us

    assert step(min(a, b)) <= step(max(a, b)) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(distributed_graphs())
def test_sharing_links_is_never_quicker(case) -> None:
    alone, shared = (simulate(case.gm, MODEL, case.groups, sharing=sharing) for sharing in (False, True))
    assert alone.step_us <= shared.step_us * (1 + 1e-9)
    assert alone.bounds == shared.bounds


def test_the_same_graph_is_played_the_same() -> None:
    b = Builder()
    gm: GraphModule = b.finish(b.wait(b.start(b.x)), b.wait(b.start(b.x, "tp")))
    assert simulate(gm, MODEL, b.groups) == simulate(gm, MODEL, GroupTable(dict(b.groups)))
