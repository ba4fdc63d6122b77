"""Fusing gradients and delaying waits on generated graphs: every rank computes the same values, nothing crashes."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from counterpoint.ir.evaluate import evaluate
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.passes.report import PassStatus
from tests.support.ddp_graphs import ddp_graphs
from tests.support.strategies import Case, distributed_graphs


@pytest.mark.parametrize(
    "pipeline",
    [
        "fuse-ddp",
        "fuse-ddp{method=coalesced},schedule-waits",
        "schedule-waits,fuse-ddp{cap-mb=0.0001 first-cap-mb=0},schedule-waits",
        "fuse-ddp{cap-mb=0.00005 method=coalesced},fuse-ddp,bucket-all-reduce",
    ],
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=ddp_graphs())
def test_every_rank_computes_the_same(pipeline: str, case: Case) -> None:
    check(pipeline, case)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=distributed_graphs(max_steps=16))
def test_graphs_of_other_collectives_stay_right_too(case: Case) -> None:
    check("fuse-ddp,schedule-waits", case)


def check(pipeline: str, case: Case) -> None:
    before = evaluate(case.gm, case.inputs, case.groups)
    gm = copy.deepcopy(case.gm)
    options = CompileOptions(verify="full", on_error="raise")
    report = run_pipeline(gm, Pipeline.parse(pipeline), options=options, groups=case.groups)
    assert all(record.status is PassStatus.DONE for record in report.passes)
    for one, other in zip(before, evaluate(gm, case.inputs, case.groups), strict=True):
        for expected, value in zip(one, other, strict=True):
            assert expected.dtype is value.dtype
            assert torch.equal(expected.float(), value.float())
