"""What is chosen to run in parts, against what was measured."""

from __future__ import annotations

import pytest
import torch
from torch.fx import Graph, Node

from counterpoint.passes.micro_pipeline.choice import CHUNKS, Work, choose_chunks, pipelined_us, refuse_small

MEASURED = [
    # One H200 under MPS, torch 2.11, bfloat16, ms: ranks, matmul alone, unfused, the best way in parts.
    (2, 0.381, 0.508, 0.513),
    (2, 0.384, 0.542, 0.540),
    (2, 1.36, 2.12, 1.57),
    (2, 1.40, 1.80, 1.91),
    (2, 1.56, 1.91, 1.94),
    (2, 1.58, 1.91, 1.96),
    (4, 0.769, 0.996, 1.03),
    (4, 0.771, 1.09, 1.21),
    (4, 1.34, 1.75, 1.69),
    (4, 1.35, 1.86, 2.01),
    (4, 1.58, 2.20, 2.03),
    (4, 1.53, 1.98, 2.29),
]


def work(communication_us: float, compute_us: float, pieces: int = 2, device_type: str = "cuda") -> Work:
    return Work(
        communication_us=communication_us,
        latency_us=20.0,
        compute_us=compute_us,
        launch_us=5.0,
        pieces=pieces,
        device_type=device_type,
    )


@pytest.fixture
def start() -> Node:
    return Graph().call_function(torch.ops._c10d_functional.all_reduce.default)


@pytest.mark.parametrize(("ranks", "alone", "unfused", "in_parts"), MEASURED)
@pytest.mark.parametrize("estimated", [0.9, 1.0, 1.1])
def test_nothing_is_chosen_that_was_measured_slower(
    start: Node, ranks: int, alone: float, unfused: float, in_parts: float, estimated: float
) -> None:
    """Also where the communication is estimated 10 % too short or too long."""
    one = work(estimated * 1e3 * (unfused - alone), 1e3 * alone, pieces=ranks)
    _, gain_us = choose_chunks(one)
    chosen = refuse_small(start, one, gain_us) is None
    assert not chosen or in_parts < unfused


def test_communication_as_long_as_the_matmul_is_pipelined(start: Node) -> None:
    one = work(1500.0, 1360.0)
    _, gain_us = choose_chunks(one)
    assert refuse_small(start, one, gain_us) is None


def test_a_gain_within_the_spread_of_measurements_is_refused_with_both_times(start: Node) -> None:
    one = work(400.0, 1000.0)
    refusal = refuse_small(start, one, 139.0)
    assert refusal is not None
    assert refusal.code == "too-small"
    assert refusal.detail == "400 us of communication, 1000 us of matmul: 139 us gained, too few to be sure"
    assert refuse_small(start, one, 141.0) is None


def test_a_processor_needs_the_same_margin(start: Node) -> None:
    one = work(400.0, 1000.0, device_type="cpu")
    assert refuse_small(start, one, 141.0) is None
    assert refuse_small(start, one, 139.0) is not None
    lost = refuse_small(start, one, -1.0)
    assert lost is not None
    assert lost.detail.endswith("1 us lost")


def test_the_number_of_chunks_is_the_best_there_is() -> None:
    one = work(5000.0, 5000.0, device_type="cpu")
    best, gain_us = choose_chunks(one)
    assert gain_us == 10000.0 - min(pipelined_us(one, chunks) for chunks in CHUNKS)
    assert best > 1
