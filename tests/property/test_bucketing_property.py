"""Bucketing on generated graphs: whatever it merges, every rank computes the same values, and all is accounted for."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from counterpoint.ir.evaluate import evaluate
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.passes.report import PassStatus
from tests.support.strategies import Case, distributed_graphs

MOVING = "bucket-all-gather{%s},bucket-all-to-all{%s}"
ALL = "bucket-reduce-scatter{%s},bucket-all-reduce{%s}," + MOVING


@pytest.mark.parametrize(
    "passes",
    [
        ALL.replace("%s", ""),
        ALL.replace("%s", "mode=coalesced"),
        ALL.replace("%s", "mode=custom"),
        ALL.replace("%s", "cap-mb=0.0001"),
        MOVING.replace("%s", "multi-dtype=true"),
        MOVING.replace("%s", "multi-dtype=true mode=custom"),
        "bucket-all-gather{max-gathered-mb=0.0002},dedup-collectives",
        "dedup-collectives," + ALL.replace("%s", "mode=custom"),
    ],
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=distributed_graphs(max_steps=16))
def test_every_rank_computes_the_same(passes: str, case: Case) -> None:
    before = evaluate(case.gm, case.inputs, case.groups)
    gm = copy.deepcopy(case.gm)
    options = CompileOptions(verify="full", on_error="raise")
    report = run_pipeline(gm, Pipeline.parse(passes), options=options, groups=case.groups)
    assert all(record.status is PassStatus.DONE for record in report.passes)
    for one, other in zip(before, evaluate(gm, case.inputs, case.groups), strict=True):
        for expected, value in zip(one, other, strict=True):
            assert expected.dtype is value.dtype
            assert torch.equal(expected.float(), value.float())
