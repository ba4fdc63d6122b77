"""Links: times that grow with size, traffic by kind, tables that say the same on all ranks, compute by operator."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoint.cost.compute import PROCESSORS, elapsed_us, node_us, processor_of
from counterpoint.cost.link import Link, traffic_bytes
from counterpoint.cost.table import LinkTable, layout_of, typical
from counterpoint.errors import OptionError
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.ops import Kind

ATEN = torch.ops.aten
CPU = PROCESSORS["cpu"]


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1e5), st.floats(0.01, 1e4))
def test_a_larger_collective_never_takes_less(a: float, b: float, latency: float, bandwidth: float) -> None:
    link = Link(latency_us=latency, bandwidth_gbps=bandwidth)
    assert link.latency_us <= link.call_us(min(a, b)) <= link.call_us(max(a, b))


def test_a_gigabit_moves_an_eighth_of_a_gigabyte_a_second() -> None:
    assert Link(latency_us=0, bandwidth_gbps=1).call_us(125e6) == pytest.approx(1e6)


@pytest.mark.parametrize(
    ("kind", "ranks", "share"),
    [(Kind.ALL_REDUCE, 2, 1.0), (Kind.ALL_REDUCE, 4, 1.5), (Kind.ALL_GATHER, 4, 0.75), (Kind.REDUCE_SCATTER, 1, 0.0)],
)
def test_traffic_is_that_of_a_ring(kind: Kind, ranks: int, share: float) -> None:
    assert traffic_bytes(kind, 1000, ranks) == 1000 * share


@pytest.mark.parametrize(("latency", "bandwidth"), [(-1, 1), (1, 0), (float("inf"), 1), (1, float("nan"))])
def test_a_link_that_cannot_be_is_refused(latency: float, bandwidth: float) -> None:
    with pytest.raises(OptionError):
        Link(latency_us=latency, bandwidth_gbps=bandwidth)


@given(st.floats(1e-3, 1e6), st.floats(1e-2, 1e4))
def test_rounding_stays_near_and_does_not_move_again(latency: float, bandwidth: float) -> None:
    link = Link(latency_us=latency, bandwidth_gbps=bandwidth)
    rounded = link.rounded()
    assert rounded.rounded() == rounded
    assert 0.7 < rounded.latency_us / latency < 1.42
    assert 0.7 < rounded.bandwidth_gbps / bandwidth < 1.42


def test_a_table_finds_a_group_by_its_layout_so_every_rank_finds_the_same() -> None:
    link = Link(latency_us=1, bandwidth_gbps=2)
    table = LinkTable().with_link((0, 4), link)
    assert table.link((1, 5)) == link
    assert table.link((0, 1)) is None
    assert table.link(()) is None
    assert layout_of((3, 5, 9)) == (0, 2, 6)


def test_the_text_of_a_table_tells_tables_apart_and_not_the_order_of_writing() -> None:
    a, b = Link(latency_us=1, bandwidth_gbps=2), Link(latency_us=2, bandwidth_gbps=2)
    one = LinkTable().with_link((0, 1), a).with_link((0, 2), b)
    other = LinkTable().with_link((0, 2), b).with_link((0, 1), a)
    assert one.text == other.text != LinkTable().with_link((0, 1), a).text


def test_an_unknown_accelerator_has_a_link_and_a_processor() -> None:
    assert typical("npu") == typical("cuda")
    assert processor_of("npu") == processor_of("cuda")


def test_a_product_takes_its_arithmetic_and_the_rest_their_traffic() -> None:
    b = GraphBuilder({"dp": (0, 1)})
    x = b.input("x", (512, 512))
    product = b.call(ATEN.mm.default, x, x)
    scaled = b.call(ATEN.mul.Tensor, product, 2.0)
    seen = b.call(ATEN.view.default, scaled, [-1])
    start = b.call(torch.ops._c10d_functional.all_reduce.default, seen, "sum", "dp")
    assert node_us(product, CPU) == pytest.approx(2 * 512**3 / (CPU.gflops * 1e3))
    assert node_us(scaled, CPU) == pytest.approx(2 * 512 * 512 * 4 / (CPU.memory_gb_per_s * 1e3))
    assert node_us(x, CPU) == node_us(seen, CPU) == node_us(start, CPU) == 0
    assert elapsed_us([x, product, scaled], CPU)[-1] == node_us(product, CPU) + node_us(scaled, CPU)


def test_what_has_no_metadata_is_unknown_and_counts_as_no_time() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    product = graph.call_function(ATEN.mm.default, (x, x))
    assert node_us(product, CPU) is None
    assert elapsed_us([product], CPU) == (0.0, 0.0)
