"""Predicted against measured: the errors, and measured curves as two numbers."""

from __future__ import annotations

import pytest

from counterpoint.cost.accuracy import Prediction, links_of, predictions, typical_error
from counterpoint.cost.link import Link, traffic_bytes
from counterpoint.cost.measured import MeasuredTable, curve_of
from counterpoint.cost.model import CostModel
from counterpoint.cost.presets import topology
from counterpoint.cost.table import LinkTable
from counterpoint.ir.ops import Kind
from counterpoint.report.calibration_text import calibration_view, size_text
from counterpoint.report.ledger_text import plain_text

PAIR = (0, 1)
LINK = Link(latency_us=100, bandwidth_gbps=8)
SIZES = [1024 * 4**power for power in range(8)]


def measured(link: Link, kind: Kind = Kind.ALL_REDUCE, layout: tuple[int, ...] = PAIR) -> MeasuredTable:
    points = [(size, link.call_us(traffic_bytes(kind, size, len(layout)))) for size in SIZES]
    return MeasuredTable({(kind, layout): curve_of(points)}, device_type="cuda")


@pytest.mark.parametrize("kind", [Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER])
def test_a_link_is_found_again_in_what_was_measured_on_it(kind: Kind) -> None:
    found = links_of(measured(LINK, kind, (0, 1, 2, 3))).link((4, 5, 6, 7))
    assert found is not None
    assert found.latency_us == pytest.approx(100, rel=0.02)
    assert found.bandwidth_gbps == pytest.approx(8, rel=0.02)


def test_one_bad_point_changes_little() -> None:
    table = measured(LINK)
    (key, curve), *_ = table.collectives.items()
    spoiled = MeasuredTable({key: (*curve[:-1], (curve[-1][0], 50 * curve[-1][1]))})
    found = links_of(spoiled).link(PAIR)
    assert found is not None
    assert found.bandwidth_gbps == pytest.approx(8, rel=0.1)


def test_what_is_all_latency_gives_no_link() -> None:
    assert links_of(MeasuredTable({(Kind.ALL_REDUCE, PAIR): ((1000, 10.0), (2000, 11.0))})).links == {}
    assert links_of(MeasuredTable()).links == {}


def test_the_true_model_makes_no_error_and_one_of_half_the_speed_a_large_one() -> None:
    table = measured(LINK)
    right = predictions(table, CostModel(links=LinkTable().with_link(PAIR, LINK), table=table))
    assert typical_error(right) == 0
    assert [one.nbytes for one in right] == SIZES
    slow = Link(latency_us=200, bandwidth_gbps=4)
    wrong = predictions(table, CostModel(links=LinkTable().with_link(PAIR, slow)))
    assert all(one.error == pytest.approx(1) for one in wrong)
    assert typical_error(()) == 0


def test_the_view_names_every_point_and_the_typical_error() -> None:
    found = predictions(measured(LINK), CostModel(topology=topology("h100x8-ib400")))
    text = plain_text(calibration_view(found, "the topology", True))
    assert text.count("all_reduce") == len(SIZES)
    assert "16 MB" in text
    assert f"over {len(SIZES)} points" in text
    assert Prediction(Kind.SEND, PAIR, 1, 0.0, 5.0).error == 0


@pytest.mark.parametrize(("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (2**30, "1 GB")])
def test_sizes_are_written_short(nbytes: float, text: str) -> None:
    assert size_text(nbytes) == text
