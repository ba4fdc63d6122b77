"""The pass `schedule-overlap`: pinned plans, caps that real storages keep, every option, one answer everywhere."""

from __future__ import annotations

import copy
import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.fx import GraphModule

from counterpoint.cost.model import CostModel
from counterpoint.errors import OptionError
from counterpoint.inductor.plan import make_plan
from counterpoint.inductor.request import read_request
from counterpoint.ir import ops
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.samples import sample_inputs
from counterpoint.ir.text import print_graph
from counterpoint.ir.view import GraphView
from counterpoint.options import CompileOptions
from counterpoint.passes.ledger import VerdictKind
from counterpoint.passes.overlap import MB, ScheduleOverlap
from counterpoint.passes.overlapping.placing import as_it_is, choose_order, place, with_room
from counterpoint.passes.overlapping.replay import graph_identity
from counterpoint.passes.overlapping.written import parse_plans
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.passes.report import PassStatus, PipelineReport
from counterpoint.schedule.engine import Policy, run
from counterpoint.schedule.reading import read_problem
from tests.unit.schedule.test_memory import Tracked

ATEN = torch.ops.aten
MODEL = CostModel(latency_us=50.0, bandwidth_gbps=1.0)
OPTIONS = CompileOptions(verify="full", on_error="raise")
PLENTY = Policy(in_flight_bytes=10**9)


def sharded(layers: int = 4, size: int = 16) -> tuple[GraphModule, GraphBuilder]:
    """Gathers, products, and scattered gradients."""
    b = GraphBuilder({"dp": (0, 1)})
    x, grads = b.input("x", (size, size)), []
    for shard in [b.input(f"shard_{k}", (size // 2, size)) for k in range(layers)]:
        x = b.call(ATEN.mm.default, x, b.all_gather(shard, "dp"))
        grads.append(b.reduce_scatter(b.call(ATEN.mm.default, x, x), "sum", "dp"))
    return b.finish(x, *grads), b


def tensor_parallel(layers: int = 3, size: int = 64) -> tuple[GraphModule, GraphBuilder]:
    """A backward in which gradients of weights stand before exchanges that they could be computed beside."""
    b = GraphBuilder({"tp": (0, 1)})
    gradient, grads = b.input("gradient", (size, size)), []
    inputs = [(b.input(f"weight_{k}", (size, size)), b.input(f"saved_{k}", (size, size))) for k in range(layers)]
    for weight, saved in inputs:
        grads.append(b.call(ATEN.mm.default, saved, gradient))
        gradient = b.all_reduce(b.call(ATEN.mm.default, gradient, weight), "sum", "tp")
    return b.finish(gradient, *grads), b


def scheduled(gm: GraphModule, b: GraphBuilder, text: str, model: CostModel = MODEL) -> PipelineReport:
    report = run_pipeline(gm, Pipeline.parse(text), options=OPTIONS, groups=b.groups, cost_model=model)
    assert [record.status for record in report.passes] == [PassStatus.DONE]
    return report


# -- plans as data -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pinned(tmp_path: Path) -> tuple[Path, str]:
    """A file with a plan of the sharded graph, and the graph that it leads to."""
    gm, b = sharded()
    path = tmp_path / "plan.txt"
    path.write_text(scheduled(gm, b, "schedule-overlap{mode=custom}").plan)
    return path, print_graph(gm)


def test_a_plan_is_replayed_whatever_the_costs_say(pinned: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, expected = pinned
    gm, b = sharded()
    monkeypatch.setattr(ScheduleOverlap, "_searched", None)
    report = scheduled(gm, b, f'schedule-overlap{{plan="{path}"}}', CostModel(latency_us=0.0, bandwidth_gbps=1e6))
    assert print_graph(gm) == expected
    assert report.notes == ()


def test_a_plan_in_which_compute_moves_is_replayed(tmp_path: Path) -> None:
    gm, b = tensor_parallel()
    again, _ = tensor_parallel()
    text = scheduled(gm, b, "schedule-overlap").plan
    assert "\nmove mm_default_1 before mm_default\n" in text
    path = tmp_path / "plan.txt"
    path.write_text(text)
    report = scheduled(again, b, f'schedule-overlap{{plan="{path}"}}', CostModel(latency_us=0.0, bandwidth_gbps=1e6))
    assert (report.notes, print_graph(again)) == ((), print_graph(gm))
    (plan,) = parse_plans(text)
    assert plan.text == "".join(line + "\n" for line in text.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize(
    ("line", "over"),
    [
        ("move nobody before mm_default", True),
        ("move mm_default before nobody", True),
        ("move mm_default mm_default before mm_default_2", True),
        # It uses what comes of the first exchange.
        ("move mm_default_3 before mm_default", True),
        ("move mm_default_1 before mm_default", False),
    ],
)
def test_a_plan_with_moves_that_may_not_be_is_left_aside(tmp_path: Path, line: str, over: bool) -> None:
    gm, b = tensor_parallel()
    path = tmp_path / "plan.txt"
    ends = f"over {' '.join(starts(gm))}\n" if over else ""
    path.write_text(f'plan "mine" for {graph_identity(gm.graph)}\n{line}\n{ends}')
    assert any("plan-changed" in note for note in scheduled(gm, b, f'schedule-overlap{{plan="{path}"}}').notes)


def test_inputs_between_other_nodes_stay_where_they_are() -> None:
    b = GraphBuilder({"tp": (0, 1)})
    x, w = b.input("x", (64, 64)), b.input("w", (64, 64))
    gradient = b.call(ATEN.mm.default, x, w)
    summed = b.all_reduce(b.call(ATEN.mm.default, w, x), "sum", "tp")
    last = b.input("last", (64, 64))
    gm = b.finish(b.call(ATEN.mm.default, summed, last), gradient)
    scheduled(gm, b, "schedule-overlap")
    place = {node: k for k, node in enumerate(gm.graph.nodes)}
    assert place[summed.all_input_nodes[0]] < place[gradient] < place[summed] < place[last]


def test_a_plan_is_read_as_it_is_written(pinned: tuple[Path, str]) -> None:
    text = pinned[0].read_text()
    (plan,) = parse_plans(text)
    assert plan.text == "".join(line + "\n" for line in text.splitlines() if not line.startswith("#"))


def test_a_plan_may_be_written_by_hand(tmp_path: Path) -> None:
    gm, b = sharded()
    path, one, other = tmp_path / "plan.txt", *starts(gm)[:2]
    path.write_text(f'plan "mine" for {graph_identity(gm.graph)}\nmode coalesced\nbucket {one} {other}\n')
    report = scheduled(gm, b, f'schedule-overlap{{plan="{path}"}}')
    assert (report.notes, report.collectives_before - report.collectives_after) == ((), 1)


@pytest.mark.parametrize("line", ["bucket nobody no_one", "bucket {0} {1}", "before mm: start {0}\nover {0}"])
def test_a_plan_that_does_not_fit_the_graph_is_left_aside(tmp_path: Path, line: str) -> None:
    gm, b = sharded()
    gather, scatter = starts(gm)[0], starts(gm)[-1]
    path = tmp_path / "plan.txt"
    path.write_text(f'plan "mine" for {graph_identity(gm.graph)}\n{line.format(gather, scatter)}\n')
    assert any("plan-changed" in note for note in scheduled(gm, b, f'schedule-overlap{{plan="{path}"}}').notes)


def starts(gm: GraphModule) -> list[str]:
    """The starts, gathers first."""
    return sorted(node.name for node in gm.graph.nodes if ops.is_collective(node))


@pytest.mark.parametrize("changed", ["one layer more", "other sizes"])
def test_a_plan_for_another_graph_is_left_aside_with_a_note(pinned: tuple[Path, str], changed: str) -> None:
    gm, b = sharded(layers=5) if changed == "one layer more" else sharded(size=32)
    again, _ = sharded(layers=5) if changed == "one layer more" else sharded(size=32)
    report = scheduled(gm, b, f'schedule-overlap{{plan="{pinned[0]}"}}')
    assert any("plan-changed" in note and "another was made" in note for note in report.notes)
    scheduled(again, b, "schedule-overlap")
    assert print_graph(gm) == print_graph(again)


def test_a_plan_that_needs_too_much_memory_is_left_aside(pinned: tuple[Path, str]) -> None:
    gm, b = sharded()
    report = scheduled(gm, b, f'schedule-overlap{{plan="{pinned[0]}" max-extra-mb=0}}')
    assert any("memory-cap" in note for note in report.notes)


@pytest.mark.parametrize(
    "line", ["bucket one", "mode thin", "before mm start x", "before mm: begin x", "over", "what", "move mm mm_1"]
)
def test_a_line_that_makes_no_sense_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "plan.txt"
    path.write_text(f'plan "forward" for 0123abcd\n{line}\n')
    gm, b = sharded()
    with pytest.raises(OptionError, match="no line of a plan") as caught:
        scheduled(gm, b, f'schedule-overlap{{plan="{path}"}}')
    assert caught.value.where == f"{path}:2"


def test_a_missing_file_is_told_before_anything_runs() -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        Pipeline.parse("schedule-overlap{plan=nowhere.txt}").check()


def test_what_stands_in_the_plan_identifies_the_compile(pinned: tuple[Path, str]) -> None:
    def identity() -> str | None:
        options = {"passes": f'schedule-overlap{{plan="{pinned[0]}"}}', "codegen": "eager"}
        return make_plan(read_request(options, None), []).identity

    before = identity()
    assert before == identity()
    pinned[0].write_text(pinned[0].read_text() + "# a remark\n")
    assert identity() != before


# -- what it keeps to --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [0, 1024, 3072, 1 << 20])
def test_real_storages_stay_under_the_cap(extra: int) -> None:
    gm, b = sharded()
    inputs = sample_inputs(gm, 2)[0]
    before = max(Tracked(copy.deepcopy(gm), inputs).alive())
    scheduled(gm, b, f"schedule-overlap{{bucket=false max-extra-mb={extra / MB!r}}}")
    assert max(Tracked(gm, inputs).alive()) <= before + extra


@pytest.mark.parametrize("part", [0.1, 0.4, 0.8])
def test_as_much_is_under_way_as_the_bound_allows(part: float) -> None:
    gm, b = sharded(layers=8)
    reading = read_problem(GraphView.of(gm), MODEL, b.groups)
    stands, free = as_it_is(reading), place(reading, run(reading.problem, PLENTY))
    limit = stands.peak_bytes + int(part * (free.peak_bytes - stands.peak_bytes))
    policy = replace(PLENTY, in_flight_bytes=free.peak_bytes)
    _, placed = choose_order(with_room(reading, limit), policy, limit)
    assert placed.peak_bytes <= limit < free.peak_bytes
    halved = [
        place(reading, run(reading.problem, replace(policy, in_flight_bytes=policy.in_flight_bytes >> k)))
        for k in range(9)
    ]
    assert placed.played.step_us <= min(one.played.step_us for one in halved if one.peak_bytes <= limit) * 1.002


EVERY = {
    "bucket": ("true", "false"),
    "move-compute": ("true", "false"),
    "mode": ("functional", "coalesced", "custom"),
    "plays": ("1", "7"),
    "max-in-flight-mb": ("0", "0.001", "2048"),
    "caution": ("0", "2"),
    "memory-cap-mb": ("none", "0.01"),
}


def test_every_combination_of_options_runs() -> None:
    original, b = sharded(layers=3)
    for values in itertools.product(*EVERY.values()):
        text = " ".join(f"{name}={value}" for name, value in zip(EVERY, values, strict=True))
        report = scheduled(copy.deepcopy(original), b, f"schedule-overlap{{{text}}}")
        assert len(list(report.ledger)) == 6


def test_barriers_effects_and_unknown_operators_keep_their_place() -> None:
    b = GraphBuilder({"dp": (0, 1)})
    x, shard = b.input("x", (64, 64)), b.input("shard", (32, 64))
    y = b.call(ATEN.mm.default, x, x)
    noise = b.call(ATEN.rand_like.default, y)
    kept = b.call(torch.ops.aten._assert_async.default, b.call(ATEN.isfinite.default, b.call(ATEN.sum.default, y)))
    whole = b.all_gather(shard, "dp")
    z = b.call(ATEN.mm.default, b.call(ATEN.add.Tensor, y, noise), whole)
    more = b.call(ATEN.rand_like.default, z)
    gm = b.finish(z, more)
    steady = [node.name for node in gm.graph.nodes if not ops.is_collective(node) and not ops.is_wait(node)]
    assert kept.name in steady
    scheduled(gm, b, "schedule-overlap{bucket=false}")
    left = [node.name for node in gm.graph.nodes if not ops.is_collective(node) and not ops.is_wait(node)]
    assert left == steady


def test_what_nobody_can_estimate_is_left_alone_and_hides_nothing() -> None:
    b = GraphBuilder({"dp": (0, 1)})
    x = b.input("x", (64, 64))
    found = b.all_reduce(x, "sum", "dp")
    places = b.call(ATEN.nonzero.default, x)
    gm = b.finish(found, places)
    assert MODEL.node_us(places) is None
    (entry,) = scheduled(gm, b, "schedule-overlap").ledger
    assert entry.verdict.kind is VerdictKind.LEFT_ALONE


ELSEWHERE = """
from tests.unit.passes.test_overlap import scheduled, sharded, tensor_parallel
for make in (sharded, tensor_parallel):
    gm, b = make(layers=6)
    print(scheduled(gm, b, "schedule-overlap{mode=custom}").plan)
"""


def test_other_processes_with_other_hash_seeds_decide_alike() -> None:
    own = ""
    for make in (sharded, tensor_parallel):
        gm, b = make(layers=6)
        own += scheduled(gm, b, "schedule-overlap{mode=custom}").plan + "\n"
    for seed in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            cwd=Path.cwd(),
        )
        assert done.stdout.strip() == own.strip()
