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

ALL = "bucket-all-gather{%s},bucket-reduce-scatter{%s},bucket-all-reduce{%s},bucket-all-to-all{%s}"


@pytest.mark.parametrize("inner", ["", "mode=coalesced", "cap-mb=0.0001"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=distributed_graphs(max_steps=16))
def test_every_rank_computes_the_same(inner: str, case: Case) -> None:
    before = evaluate(case.gm, case.inputs, case.groups)
    gm = copy.deepcopy(case.gm)
    pipeline = Pipeline.parse(ALL.replace("%s", inner))
    report = run_pipeline(gm, pipeline, options=CompileOptions(verify="full", on_error="raise"), groups=case.groups)
    assert all(record.status is PassStatus.DONE for record in report.passes)
    for one, other in zip(before, evaluate(gm, case.inputs, case.groups), strict=True):
        for expected, value in zip(one, other, strict=True):
            assert expected.dtype is value.dtype
            assert torch.equal(expected.float(), value.float())
