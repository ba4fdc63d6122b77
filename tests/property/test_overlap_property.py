"""The overlap scheduler on generated graphs: same values, no longer by the costs, memory under the cap, one answer."""

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule

from counterpoint.cost.model import CostModel
from counterpoint.cost.presets import topology
from counterpoint.ir.evaluate import evaluate
from counterpoint.ir.text import print_graph
from counterpoint.ir.view import GraphView
from counterpoint.options import CompileOptions
from counterpoint.passes.overlap import MB
from counterpoint.passes.overlapping.placing import alive_in
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.passes.report import PassStatus, PipelineReport
from counterpoint.sim.deadlock import Deadlock, find_deadlock
from counterpoint.sim.launches import launches_of
from counterpoint.sim.simulator import simulate
from tests.support.compare import difference
from tests.support.strategies import Case, distributed_graphs

MODELS = {
    "typical links": CostModel(),
    "small nodes": CostModel(topology=topology("cpu-10g")),
    "no latency": CostModel(latency_us=0.0, bandwidth_gbps=0.01),
}
OPTIONS = CompileOptions(verify="full", on_error="raise")
SETTINGS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def run(gm: GraphModule, case: Case, passes: str, model: CostModel) -> PipelineReport:
    report = run_pipeline(gm, Pipeline.parse(passes), options=OPTIONS, groups=case.groups, cost_model=model)
    assert all(record.status is PassStatus.DONE for record in report.passes)
    return report


def scheduled(case: Case, passes: str, model: CostModel) -> GraphModule:
    gm = copy.deepcopy(case.gm)
    run(gm, case, passes, model)
    return gm


def peak(gm: GraphModule) -> int:
    view = GraphView.of(gm)
    return max(alive_in(view, view.nodes))


@pytest.mark.parametrize("mode", ["functional", "coalesced", "custom"])
@SETTINGS
@given(case=distributed_graphs(max_steps=16), name=st.sampled_from(sorted(MODELS)))
def test_every_rank_computes_the_same_and_no_later(mode: str, case: Case, name: str) -> None:
    model = MODELS[name]
    gm = scheduled(case, f"schedule-overlap{{mode={mode} plays=20}}", model)
    for one, other in zip(
        evaluate(case.gm, case.inputs, case.groups), evaluate(gm, case.inputs, case.groups), strict=True
    ):
        for expected, value in zip(one, other, strict=True):
            assert difference(expected, value) is None
    before, after = simulate(case.gm, model, case.groups), simulate(gm, model, case.groups)
    assert after.step_us <= before.step_us * (1 + 1e-9)


@SETTINGS
@given(case=distributed_graphs(max_steps=16), extra=st.sampled_from([0, 64, 512, 4096]))
def test_memory_stays_under_the_cap(case: Case, extra: int) -> None:
    before = peak(case.gm)
    gm = scheduled(case, f"schedule-overlap{{plays=20 max-extra-mb={extra / MB!r}}}", MODELS["typical links"])
    assert peak(gm) <= before + extra
    gm = scheduled(case, f"schedule-overlap{{plays=20 memory-cap-mb={(before + extra) / MB!r}}}", CostModel())
    assert peak(gm) <= before + extra


@SETTINGS
@given(case=distributed_graphs(max_steps=16))
def test_the_answer_is_one_and_no_rank_can_stand_still(case: Case) -> None:
    one, other = (scheduled(case, "schedule-overlap{plays=20}", CostModel()) for _ in range(2))
    assert print_graph(one) == print_graph(other)
    assert deadlock_of(case.gm, case) is not None or deadlock_of(one, case) is None


@SETTINGS
@given(case=distributed_graphs(max_steps=16), mode=st.sampled_from(["functional", "coalesced", "custom"]))
def test_a_written_plan_leads_to_the_same_graph_without_a_search(
    tmp_path_factory: pytest.TempPathFactory, case: Case, mode: str
) -> None:
    once, again = copy.deepcopy(case.gm), copy.deepcopy(case.gm)
    report = run(once, case, f"schedule-overlap{{mode={mode} plays=20}}", CostModel())
    path = tmp_path_factory.mktemp("plan") / "plan.txt"
    path.write_text(report.plan)
    # The mode is the plan's, and the other costs must not matter.
    replayed = run(again, case, f'schedule-overlap{{plan="{path}"}}', CostModel(latency_us=0.0, bandwidth_gbps=100.0))
    if report.plan:
        assert said(replayed) == said(report)
        assert plan_of(replayed) == plan_of(report)
        assert print_graph(again) == print_graph(once)
    else:
        assert any("plan-changed" in note for note in replayed.notes)


def said(report: PipelineReport) -> list[str]:
    """The notes, without the pass that each begins with: its text holds how it was asked for."""
    return [note.partition(": ")[2] for note in report.notes]


def plan_of(report: PipelineReport) -> list[str]:
    return [line for line in report.plan.splitlines() if not line.startswith("#")]


def deadlock_of(gm: GraphModule, case: Case) -> Deadlock | None:
    orders = {rank: launches_of(gm, case.groups, rank, case.world_size) for rank in range(case.world_size)}
    return find_deadlock(orders)
