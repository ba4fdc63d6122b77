"""The cost model: what goes before what, operators with and without fusion, measured tables, and no question raises."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoint.cost.compute import node_us
from counterpoint.cost.fused import fused_work, overlapped_us
from counterpoint.cost.link import Link
from counterpoint.cost.measured import MeasuredTable, curve_of, operator_key
from counterpoint.cost.model import CostModel
from counterpoint.cost.network import Algorithm
from counterpoint.cost.presets import topology
from counterpoint.cost.processor import PROCESSORS, Processor
from counterpoint.cost.table import LinkTable, typical
from counterpoint.errors import OptionError
from counterpoint.ir import pipelined
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.ops import Kind
from counterpoint.options import CompileOptions
from tests.support.strategies import distributed_graphs

ATEN = torch.ops.aten
BOX = topology("h100x8-ib400")
PAIR = (0, 1)
MEASURED = MeasuredTable({(Kind.ALL_REDUCE, PAIR): ((1000, 10.0), (2000, 20.0), (4000, 60.0))})
UNIT = Processor(gflops=1, memory_gb_per_s=1, launch_us=0)
"""A byte and an operation a nanosecond."""


def test_what_was_measured_goes_before_what_is_described() -> None:
    ask = (Kind.ALL_REDUCE, 2000, PAIR)
    links = LinkTable().with_link(PAIR, Link(latency_us=7, bandwidth_gbps=8))
    assert CostModel(topology=BOX, links=links, table=MEASURED).collective_us(*ask) == 20
    assert CostModel(topology=BOX, links=links).collective_us(*ask) == 7 + 2
    assert CostModel(topology=BOX).collective_us(*ask) == pytest.approx(7, abs=2)
    assert CostModel().collective_us(*ask) == typical("cpu").call_us(2000)


def test_what_the_user_says_goes_before_links_and_topology() -> None:
    model = CostModel(topology=BOX, latency_us=100, bandwidth_gbps=8)
    assert model.collective_us(Kind.ALL_REDUCE, 2000, PAIR) == 100 + 2
    assert replace(model, bandwidth_gbps=None).collective_us(Kind.ALL_REDUCE, 0, PAIR) == 100


def test_a_table_only_knows_the_groups_and_kinds_that_it_has() -> None:
    model = CostModel(table=MEASURED)
    assert model.collective_us(Kind.ALL_REDUCE, 1500, (4, 5)) == 15
    assert model.collective_us(Kind.ALL_REDUCE, 1500, (0, 2)) == typical("cpu").call_us(1500)
    assert MEASURED.collective_us(Kind.ALL_GATHER, 1500, PAIR) is None


@pytest.mark.parametrize(("nbytes", "us"), [(0, 10), (1000, 10), (1500, 15), (3000, 40), (6000, 100)])
def test_between_points_a_line_and_beyond_the_last_the_same_slope(nbytes: float, us: float) -> None:
    assert MEASURED.collective_us(Kind.ALL_REDUCE, nbytes, PAIR) == us


POINTS = st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e6)), min_size=1, max_size=8)


@given(POINTS, st.floats(0, 1e10), st.floats(0, 1e10))
def test_a_noisy_table_still_never_falls(points, a: float, b: float) -> None:
    table = MeasuredTable({(Kind.SEND, PAIR): curve_of(points)})
    low, high = (table.collective_us(Kind.SEND, size, PAIR) for size in sorted((a, b)))
    assert 0 <= low <= high * (1 + 1e-9)


@pytest.mark.parametrize("points", [[(1, -1)], [(-1, 1)], [(1, float("nan"))], [(1, float("inf"))], [("a", 1)], [1]])
def test_points_that_cannot_be_are_refused(points) -> None:
    with pytest.raises((ValueError, TypeError)):
        curve_of(points)


def test_a_table_is_written_and_read(tmp_path: Path) -> None:
    table = replace(MEASURED, operators={"aten.mm.default(cpu float32[2, 2])": 3.5}, origin="here")
    path = tmp_path / "table.json"
    table.save(path)
    assert MeasuredTable.load(path) == table
    assert MeasuredTable.load(path).identity == replace(table, origin="elsewhere").identity != MEASURED.identity


NO_KIND, NO_OPERATORS = '{"schema": 1, "collectives": [{"kind": "x"}]}', '{"schema": 1, "operators": 3}'


@pytest.mark.parametrize("content", ["", "{}", '{"schema": 2}', "[1]", NO_KIND, NO_OPERATORS])
def test_a_damaged_table_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(OptionError, match=r"calibrate|damaged"):
        MeasuredTable.load(path)
    with pytest.raises(OptionError, match="cannot be read"):
        MeasuredTable.load(tmp_path / "none.json")


def test_options_make_the_model(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    MEASURED.save(path)
    options = CompileOptions(topology="a100x8-ib200", cost_table=str(path), latency_us=3.0, codegen="eager")
    model = CostModel.of(options)
    assert model.topology == topology("a100x8-ib200")
    assert (model.table, model.latency_us, model.fuses, model.is_informed) == (MEASURED, 3.0, False, True)
    assert not CostModel.of(CompileOptions()).is_informed
    with pytest.raises(OptionError, match="did you mean"):
        CostModel.of(CompileOptions(topology="a100x8-ib20"))


def test_the_text_tells_models_apart() -> None:
    models = [
        CostModel(),
        CostModel(fuses=False),
        CostModel(topology=BOX),
        CostModel(topology=topology("h200x8-ib400")),
        CostModel(table=MEASURED),
        CostModel(latency_us=1),
        CostModel(bandwidth_gbps=1),
        CostModel(links=LinkTable().with_link(PAIR, Link(latency_us=1, bandwidth_gbps=1))),
    ]
    assert len({model.text for model in models}) == len(models)


def test_an_algorithm_can_be_forced_where_it_is_possible() -> None:
    model = CostModel(topology=BOX)
    plain = model.collective_us(Kind.ALL_REDUCE, 1e4, range(8))
    assert model.collective_us(Kind.ALL_REDUCE, 1e4, range(8), algorithm=Algorithm.ONE_SHOT) < plain
    assert model.collective_us(Kind.ALL_REDUCE, 1e4, range(16), algorithm=Algorithm.ONE_SHOT) == model.collective_us(
        Kind.ALL_REDUCE, 1e4, range(16)
    )


@given(st.sampled_from(list(Kind)), st.floats(0, 1e12), st.integers(0, 64), st.booleans())
def test_no_kind_size_or_group_is_an_error(kind: Kind, nbytes: float, count: int, described: bool) -> None:
    model = CostModel(topology=BOX if described else None)
    assert 0 <= model.collective_us(kind, nbytes, range(count)) < float("inf")


@given(distributed_graphs())
def test_every_node_of_a_graph_has_a_time_or_is_unknown(case) -> None:
    for fuses in (True, False):
        model = CostModel(topology=BOX, fuses=fuses)
        times = [model.node_us(node) for node in case.gm.graph.nodes]
        assert all(us is None or 0 <= us < float("inf") for us in times)


# ---- operators ------------------------------------------------------------------------------------------------------


def chain() -> tuple[GraphBuilder, list[torch.fx.Node]]:
    b = GraphBuilder()
    x = b.input("x", (1000,))
    a = b.call(ATEN.relu.default, x)
    c = b.call(ATEN.mul.Tensor, a, 2.0)
    d = b.call(ATEN.add.Tensor, c, x)
    return b, [a, c, d]


def test_a_fused_chain_reads_and_writes_what_crosses_its_border() -> None:
    b, nodes = chain()
    b.finish(nodes[-1])
    # x is read by the first and by the last; only the last is written.
    assert [node_us(node, UNIT) for node in nodes] == [4, 0, 8]
    assert [node_us(node, UNIT, fuses=False) for node in nodes] == [8, 8, 12]


def test_what_somebody_else_reads_is_written_too() -> None:
    b, nodes = chain()
    b.finish(nodes[0], nodes[-1])
    assert [node_us(node, UNIT) for node in nodes] == [8, 0, 8]


def test_chains_fuse_through_views_and_into_reductions_and_not_into_products() -> None:
    b = GraphBuilder()
    x = b.input("x", (100, 100))
    a = b.call(ATEN.relu.default, x)
    seen = b.call(ATEN.view.default, a, [10000])
    total = b.call(ATEN.sum.default, seen)
    product = b.call(ATEN.mm.default, b.call(ATEN.relu.default, x), x)
    b.finish(total, product)
    assert node_us(a, UNIT) == 40
    assert node_us(total, UNIT) == pytest.approx(0.004)
    assert node_us(product.args[0], UNIT) == 80
    assert node_us(product, UNIT) == 2 * 100**3 / 1e3


def test_a_small_kernel_takes_what_every_kernel_takes() -> None:
    b, nodes = chain()
    b.finish(nodes[-1])
    floor = replace(UNIT, kernel_us=100)
    assert [node_us(node, floor) for node in nodes] == [4, 0, 100]


def test_products_of_narrow_types_are_faster() -> None:
    b = GraphBuilder()
    times = []
    for dtype in (torch.float32, torch.bfloat16):
        x = b.input("x", (4096, 4096), dtype)
        times.append(node_us(b.call(ATEN.mm.default, x, x), PROCESSORS["h100"]))
    assert times[0] / times[1] == pytest.approx(989 / 494, rel=0.01)


def test_reading_rows_of_a_table_reads_those_rows() -> None:
    b = GraphBuilder()
    table, rows = b.input("table", (100_000, 10)), b.input("rows", (50,), torch.int64)
    picked = b.call(ATEN.embedding.default, table, rows)
    b.finish(picked)
    assert node_us(picked, UNIT) == pytest.approx((2000 + 2000 + 400) / 1e3)


def test_what_may_do_anything_inside_is_unknown() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 4))
    strange = b.graph.call_function(torch.ops.prim.device.default, (x,))
    strange.meta["val"] = x.meta["val"]
    unbacked = b.graph.call_function(ATEN.nonzero.default, (x,))
    assert node_us(strange, UNIT) is None
    assert node_us(unbacked, UNIT) is None


def test_a_measured_operator_is_found_by_what_it_computes() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (8, 4)), b.input("y", (8, 4))
    first, second = (b.call(ATEN.sum.dim_IntList, tensor, [0]) for tensor in (x, y))
    other = b.call(ATEN.sum.dim_IntList, x, [1])
    key = operator_key(first)
    assert key == operator_key(second) != operator_key(other)
    assert key is not None
    assert "float32[8, 4]" in key
    model = CostModel(table=MeasuredTable(operators={key: 123.0}))
    assert model.node_us(second) == 123
    assert model.node_us(other) != 123


def test_symbolic_sizes_are_measured_by_their_hint() -> None:
    b = GraphBuilder()
    rows = b.symbol("rows", 8)
    x, y = b.input("x", (rows, 4)), b.input("y", (8, 4))
    keys = {operator_key(b.call(ATEN.relu.default, tensor)) for tensor in (x, y)}
    assert len(keys) == 1


# ---- products with a collective inside ------------------------------------------------------------------------------


def test_a_gather_with_its_product() -> None:
    b = GraphBuilder({"tp": range(4)})
    shard, right = b.input("shard", (16, 8)), b.input("right", (8, 32))
    node = b.call(
        pipelined.OPS.all_gather_matmul.default,
        shard, [right], [None], [torch.float32], 0, True, 1, 4, "tp", False,
    )  # fmt: skip
    work = fused_work(node, 4)
    assert work == (64 * 8 * 4, 2 * 64 * 8 * 32, torch.float32)


def test_a_product_with_its_scatter() -> None:
    b = GraphBuilder({"tp": range(4)})
    left, right = b.input("left", (64, 8)), b.input("right", (8, 32))
    node = b.call(pipelined.OPS.matmul_reduce_scatter.default, [left], [right], None, "sum", 0, 1, 4, "tp")
    assert fused_work(node, 4) == (64 * 32 * 4, 2 * 64 * 8 * 32, torch.float32)
    assert fused_work(left, 4) is None


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 64))
def test_overlap_is_never_slower_than_one_after_the_other(network: float, product: float, ranks: int) -> None:
    both = overlapped_us(network, product, ranks)
    assert max(network, product) <= both <= (network + product) * (1 + 1e-9)


def test_a_table_file_is_plain_json() -> None:
    assert json.loads(json.dumps(MEASURED.to_data()))["collectives"][0]["kind"] == "all_reduce"
