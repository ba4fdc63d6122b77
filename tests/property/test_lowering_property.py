"""Lowering on generated graphs: whatever ranks have found out, all compute the same, and all is accounted for."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from counterpoint.cost.capabilities import CapabilityTable
from counterpoint.cost.model import CostModel
from counterpoint.ir.evaluate import evaluate
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.passes.report import PassStatus
from tests.support.lowering import one_host, two_hosts
from tests.support.strategies import Case, distributed_graphs


def found_out(case: Case, hosts: int) -> CapabilityTable:
    """One host for all, or the larger groups on two."""
    made = {
        (name, "cpu"): two_hosts(len(ranks)) if hosts == 2 and len(ranks) == 4 else one_host(len(ranks))
        for name, ranks in case.groups.items()
    }
    return CapabilityTable(made)


@pytest.mark.parametrize(
    ("passes", "hosts", "generated"),
    [
        ("lower-collectives", 1, False),
        ("lower-collectives", 2, True),
        ("bucket-all-reduce,bucket-all-gather,schedule-waits,lower-collectives", 1, False),
    ],
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=distributed_graphs(max_steps=14))
def test_every_rank_computes_the_same(passes: str, hosts: int, generated: bool, case: Case) -> None:
    before = evaluate(case.gm, case.inputs, case.groups)
    gm = copy.deepcopy(case.gm)
    report = run_pipeline(
        gm,
        Pipeline.parse(passes),
        options=CompileOptions(verify="full", on_error="raise"),
        groups=case.groups,
        # Links on which every byte counts, so that small tensors are worth a second look.
        cost_model=CostModel(fuses=generated, latency_us=0.0, bandwidth_gbps=0.001),
        capabilities=found_out(case, hosts),
    )
    assert all(record.status is PassStatus.DONE for record in report.passes)
    for one, other in zip(before, evaluate(gm, case.inputs, case.groups), strict=True):
        for expected, value in zip(one, other, strict=True):
            assert expected.dtype is value.dtype
            assert torch.equal(expected.float(), value.float())
