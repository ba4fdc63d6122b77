"""Every collective is represented, or refused with a reason; names of nodes never matter."""

import operator

import pytest
import torch
from torch.fx import Node

from counterpoint.errors import CounterpointError, GroupError
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.collective import (
    Collective,
    CommBlock,
    get_all_comm_blocks,
    get_comm_block,
    read_collective,
)
from counterpoint.ir.evaluate import evaluate
from counterpoint.ir.groups import GroupTable, group_of
from counterpoint.ir.ops import Kind
from counterpoint.ir.reason import Refusal

C10D = torch.ops._c10d_functional
ATEN = torch.ops.aten


@pytest.fixture
def builder() -> GraphBuilder:
    return GraphBuilder({"dp": range(4)})


def block_of(node: Node) -> CommBlock:
    block = get_comm_block(node)
    assert isinstance(block, CommBlock), str(block)
    return block


def refusal_of(node: Node) -> Refusal:
    refusal = get_comm_block(node)
    assert isinstance(refusal, Refusal), str(refusal)
    return refusal


def test_what_a_collective_says_of_itself(builder: GraphBuilder) -> None:
    x = builder.input("x", (8, 4), torch.bfloat16)
    start = builder.call(C10D.reduce_scatter_tensor.default, x, "avg", 4, "dp")
    wait = builder.wait(start)
    found = read_collective(start)
    assert isinstance(found, Collective)
    assert (found.kind, found.reduce_op, found.group.name, found.group.size) == (Kind.REDUCE_SCATTER, "avg", "dp", 4)
    assert (found.inputs, found.waits, found.finals) == ((x,), (wait,), (wait,))
    assert (found.sent.shapes, found.received.shapes) == (((8, 4),), ((2, 4),))
    assert (found.sent.nbytes, found.received.nbytes) == (64, 16)
    assert found.sent.dtypes == (torch.bfloat16,)


def test_one_wait_with_trailing_views(builder: GraphBuilder) -> None:
    start = builder.call(C10D.all_reduce.default, builder.input("x", (8, 4)), "sum", "dp")
    wait = builder.wait(start)
    flat = builder.call(ATEN.view.default, wait, (-1,))
    part = builder.call(ATEN.slice.Tensor, flat, 0, 0, 4)
    gm = builder.finish(builder.call(ATEN.neg.default, part), wait)
    (block,) = get_all_comm_blocks(gm.graph)
    assert isinstance(block, CommBlock)
    assert [n.target for n in block.nodes] == [n.target for n in (start, wait, flat, part)]
    assert [n.target for n in block.outputs] == [wait.target, part.target]


def test_operators_decide_not_names(builder: GraphBuilder) -> None:
    start = builder.call(C10D.all_reduce.default, builder.input("x", (8, 4)), "sum", "dp")
    wait = builder.wait(start)
    relu = builder.call(ATEN.relu.default, wait)
    relu.name = "detach_relu"
    assert block_of(start).outputs == (wait,)


def test_coalesced_waits_go_through_getitem(builder: GraphBuilder) -> None:
    x, y = builder.input("x", (8,)), builder.input("y", (2, 2))
    start = builder.call(C10D.all_reduce_coalesced.default, [x, y], "sum", "dp")
    second = builder.call(operator.getitem, start, 1)
    first = builder.call(operator.getitem, start, 0)
    waits = [builder.wait(second), builder.wait(first)]
    block = block_of(start)
    assert set(block.waits) == set(waits)
    assert block.inputs == (x, y)
    assert block.collective.sent.nbytes == 48


@pytest.mark.skipif(not hasattr(C10D, "wait_tensors"), reason="torch has no wait for several tensors before 2.15")
@pytest.mark.parametrize("as_list", [True, False])
def test_one_wait_for_all_tensors(builder: GraphBuilder, as_list: bool) -> None:
    x, y = builder.input("x", (8,)), builder.input("y", (2, 2))
    start = builder.call(C10D.all_reduce_coalesced.default, [x, y], "sum", "dp")
    waited = [builder.call(operator.getitem, start, i) for i in range(2)] if as_list else start
    wait = builder.call(C10D.wait_tensors.default, waited)
    first, second = (builder.call(operator.getitem, wait, i) for i in range(2))
    gm = builder.finish(first, second)
    block = block_of(next(n for n in gm.graph.nodes if n.target is start.target))
    assert [n.target for n in block.waits] == [wait.target]
    assert {n.name for n in block.outputs} == {first.name, second.name}
    inputs = [[torch.ones(8) * rank, torch.ones(2, 2)] for rank in range(4)]
    assert [t.flatten()[0].item() for t in evaluate(gm, inputs, builder.groups)[0]] == [6.0, 4.0]


def test_a_wait_in_the_output_is_a_block(builder: GraphBuilder) -> None:
    wait = builder.all_reduce(builder.input("x", (8,)), "sum", "dp")
    gm = builder.finish(wait)
    (block,) = get_all_comm_blocks(gm.graph)
    assert isinstance(block, CommBlock)
    assert block.outputs == block.waits


def test_no_wait_is_refused(builder: GraphBuilder) -> None:
    start = builder.call(C10D.all_reduce.default, builder.input("x", (8,)), "sum", "dp")
    assert refusal_of(start).code == "no-wait"
    assert isinstance(read_collective(start), Collective)


def test_several_waits_are_refused_and_named(builder: GraphBuilder) -> None:
    start = builder.call(C10D.all_reduce.default, builder.input("x", (8,)), "sum", "dp")
    waits = [builder.wait(start), builder.wait(start)]
    refusal = refusal_of(start)
    assert refusal.code == "several-waits"
    assert all(wait.name in refusal.detail for wait in waits)
    found = read_collective(start)
    assert isinstance(found, Collective)
    assert set(found.waits) == set(waits)


def test_a_result_read_before_its_wait_is_refused(builder: GraphBuilder) -> None:
    start = builder.call(C10D.all_reduce.default, builder.input("x", (8,)), "sum", "dp")
    builder.wait(start)
    early = builder.call(ATEN.neg.default, start)
    refusal = refusal_of(start)
    assert (refusal.code, early.name in refusal.detail) == ("result-escapes", True)


def test_a_coalesced_result_that_is_only_partly_waited_is_refused(builder: GraphBuilder) -> None:
    start = builder.call(
        C10D.all_reduce_coalesced.default, [builder.input("x", (8,)), builder.input("y", (8,))], "sum", "dp"
    )
    builder.wait(builder.call(operator.getitem, start, 0))
    assert refusal_of(start).code == "partly-waited"
    builder.call(operator.getitem, start, 1)
    assert refusal_of(start).code == "partly-waited"


def test_missing_metadata_is_refused(builder: GraphBuilder) -> None:
    x = builder.input("x", (8,))
    start = builder.call(C10D.all_reduce.default, x, "sum", "dp")
    builder.wait(start)
    del x.meta["val"]
    refusal = refusal_of(start)
    assert (refusal.code, refusal.node) == ("no-metadata", x.name)


def test_what_starts_nothing_is_refused(builder: GraphBuilder) -> None:
    x = builder.input("x", (8,))
    wait = builder.all_reduce(x, "sum", "dp")
    assert refusal_of(x).code == "not-a-collective"
    assert refusal_of(wait).code == "not-a-collective"
    unknown = builder.graph.call_function(torch.ops.symm_mem.memset32_.default, (x, 0, 0, 1))
    assert refusal_of(unknown).code == "unknown-operator"


def test_in_place_collectives_name_what_they_write(builder: GraphBuilder) -> None:
    x = builder.input("x", (8,))
    start = builder.call(C10D.all_reduce_.default, x, "sum", "dp")
    builder.wait(start)
    assert block_of(start).collective.written == (x,)


def test_operators_that_need_no_wait(builder: GraphBuilder) -> None:
    x = builder.input("x", (8, 4))
    start = builder.call(torch.ops._dtensor.shard_dim_alltoall.default, x, 0, 1, "dp")
    builder.finish(start)
    block = block_of(start)
    assert (block.waits, block.outputs) == ((), (start,))
    assert block.collective.received.shapes == ((32, 1),)


def test_symbolic_sizes_stay_symbolic(builder: GraphBuilder) -> None:
    rows = builder.symbol("rows", 8)
    start = builder.call(C10D.all_reduce.default, builder.input("x", (rows, 4)), "sum", "dp")
    builder.wait(start)
    nbytes = block_of(start).collective.sent.nbytes
    assert isinstance(nbytes, torch.SymInt)
    assert str(nbytes) == f"16*{rows}"


def test_a_group_may_be_a_node_or_an_object(builder: GraphBuilder) -> None:
    node = builder.graph.placeholder("pg")
    assert group_of(node).key is node
    named = type("NamedGroup", (), {"group_name": "dp"})()
    assert group_of(named) == group_of("dp")
    node.meta["val"] = named
    assert group_of(node) == group_of("dp")
    with pytest.raises(GroupError, match="not a process group"):
        group_of(7)


def test_an_unknown_group_names_the_known_ones() -> None:
    with pytest.raises(GroupError, match="no group is named 'tp'; known: 'dp'"):
        GroupTable({"dp": (0, 1)})["tp"]


@pytest.mark.parametrize(
    ("ranks", "rank", "seen"),
    [((0, 1), 3, (2, 3)), ((0, 2), 3, (1, 3)), ((0, 2), 5, (5, 7)), ((2, 3), 0, (0, 1)), ((0, 1), 1, (0, 1))],
)
def test_a_group_is_a_tile_of_the_mesh(ranks: tuple[int, ...], rank: int, seen: tuple[int, ...]) -> None:
    assert GroupTable({"g": ranks}).seen_from(rank, "g", 8) == seen


def test_a_rank_outside_every_tile_is_an_error() -> None:
    with pytest.raises(GroupError, match="rank 2 of 3"):
        GroupTable({"g": (0, 1)}).seen_from(2, "g", 3)


def test_a_refusal_needs_a_code_of_the_table() -> None:
    with pytest.raises(CounterpointError, match="unknown reason code 'because'"):
        Refusal("because", "node")
