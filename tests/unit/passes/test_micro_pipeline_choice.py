"""What is chosen to run in parts, against what was measured."""

from __future__ import annotations

import pytest
import torch
from torch.fx import Graph, Node

from counterpoint.passes.micro_pipeline.choice import Work, choose_chunks, pipelined_us, refuse_small

MEASURED = [
    # One H200 under MPS, torch 2.11, bfloat16, ms, two runs: ranks, whether it is a gather, matmul alone, unfused, in
    # parts with one chunk: gathers our way, reductions torch's.
    (2, True, 0.381, 0.508, 0.548),
    (2, False, 0.384, 0.542, 0.540),
    (2, True, 1.36, 2.12, 1.59),
    (2, False, 1.40, 1.80, 1.91),
    (2, True, 1.56, 1.91, 1.94),
    (2, False, 1.58, 1.91, 1.98),
    (4, True, 0.769, 0.996, 1.03),
    (4, False, 0.771, 1.09, 1.21),
    (4, True, 1.34, 1.75, 1.75),
    (4, False, 1.35, 1.86, 2.01),
    (4, True, 1.58, 2.20, 2.09),
    (4, False, 1.53, 1.98, 2.29),
    (2, True, 0.380, 0.519, 0.540),
    (2, False, 0.382, 0.543, 0.573),
    (2, True, 1.34, 2.05, 1.55),
    (2, False, 1.38, 1.79, 1.87),
    (2, True, 1.55, 1.89, 1.87),
    (2, False, 1.57, 1.88, 1.91),
    (4, True, 0.762, 1.01, 1.02),
    (4, False, 0.770, 1.08, 1.21),
    (4, True, 1.34, 1.74, 1.75),
    (4, False, 1.35, 1.92, 2.05),
    (4, True, 1.58, 2.20, 2.11),
    (4, False, 1.53, 2.03, 2.26),
]


def work(
    communication_us: float, compute_us: float, pieces: int = 2, device_type: str = "cuda", gathers: bool = False
) -> Work:
    return Work(
        communication_us=communication_us,
        latency_us=20.0,
        compute_us=compute_us,
        launch_us=5.0,
        pieces=pieces,
        device_type=device_type,
        gathers=gathers,
    )


@pytest.fixture
def start() -> Node:
    return Graph().call_function(torch.ops._c10d_functional.all_reduce.default)


@pytest.mark.parametrize(("ranks", "gathers", "alone", "unfused", "in_parts"), MEASURED)
@pytest.mark.parametrize("estimated", [0.9, 1.0, 1.1])
def test_nothing_is_chosen_that_was_measured_slower(
    start: Node, ranks: int, gathers: bool, alone: float, unfused: float, in_parts: float, estimated: float
) -> None:
    """Also where the communication is estimated 10 % too short or too long; and what gains a fifth is chosen."""
    one = work(estimated * 1e3 * (unfused - alone), 1e3 * alone, pieces=ranks, gathers=gathers)
    chunks, gain_us = choose_chunks(one)
    chosen = refuse_small(start, one, gain_us) is None
    assert chunks == 1
    assert in_parts < unfused if chosen else in_parts > 0.8 * unfused


def test_communication_as_long_as_the_matmul_is_pipelined(start: Node) -> None:
    one = work(1500.0, 1360.0)
    _, gain_us = choose_chunks(one)
    assert refuse_small(start, one, gain_us) is None


def test_a_gain_within_the_spread_of_measurements_is_refused_with_both_times(start: Node) -> None:
    one = work(400.0, 1000.0)
    refusal = refuse_small(start, one, 69.0)
    assert refusal is not None
    assert refusal.code == "too-small"
    assert refusal.detail == "400 us of communication, 1000 us of matmul: 69 us gained, too few to be sure"
    assert refuse_small(start, one, 71.0) is None


def test_a_processor_needs_more(start: Node) -> None:
    one = work(400.0, 1000.0, device_type="cpu")
    assert refuse_small(start, one, 141.0) is None
    assert refuse_small(start, one, 139.0) is not None
    lost = refuse_small(start, one, -1.0)
    assert lost is not None
    assert lost.detail.endswith("1 us lost")


def test_the_number_of_chunks_is_the_best_there_is() -> None:
    one = work(5000.0, 5000.0, device_type="cpu")
    best, gain_us = choose_chunks(one)
    assert gain_us == 10000.0 - min(pipelined_us(one, chunks) for chunks in one.parts.chunks)
    assert best > 1
