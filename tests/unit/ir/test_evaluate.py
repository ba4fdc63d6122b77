"""The simulated ranks: right values, poison before the wait, and a clear word when ranks cannot go on."""

import operator

import pytest
import torch

from counterpoint.errors import EvaluationError
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.evaluate import evaluate
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.samples import sample_inputs

C10D = torch.ops._c10d_functional
ATEN = torch.ops.aten


def per_rank(shape: tuple[int, ...], world: int = 2) -> list[list[torch.Tensor]]:
    return [[torch.arange(torch.Size(shape).numel()).float().reshape(shape) + 10 * r] for r in range(world)]


def test_collectives_over_the_world_and_over_subgroups() -> None:
    builder = GraphBuilder({"world": range(4), "near": (0, 1), "far": (0, 2)})
    x = builder.input("x", (4,))
    kept = [builder.all_reduce(x, "sum", g) for g in ("world", "near", "far")]
    gm = builder.finish(*kept, builder.all_gather(x, "near"), builder.reduce_scatter(x, "max", "world"))
    inputs = [[torch.full((4,), float(rank))] for rank in range(4)]
    world, near, far, gathered, scattered = evaluate(gm, inputs, builder.groups)[3]
    assert [t[0].item() for t in (world, near, far)] == [6.0, 5.0, 4.0]
    assert gathered.tolist() == [2.0] * 4 + [3.0] * 4
    assert scattered.tolist() == [3.0]


def test_all_to_all_broadcast_and_shard_dim() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (4, 2))
    exchanged = builder.wait(builder.call(C10D.all_to_all_single.default, x, [2, 2], [2, 2], "0"))
    sent = builder.wait(builder.call(C10D.broadcast.default, x, 1, "0"))
    turned = builder.call(torch.ops._dtensor.shard_dim_alltoall.default, x, 0, 1, "0")
    gm = builder.finish(exchanged, sent, turned)
    a, b = (t for (t,) in per_rank((4, 2)))
    first, second = evaluate(gm, per_rank((4, 2)), builder.groups)
    assert torch.equal(first[0], torch.cat([a[:2], b[:2]]))
    assert torch.equal(second[0], torch.cat([a[2:], b[2:]]))
    assert torch.equal(first[1], b)
    assert torch.equal(first[2], torch.cat([a[:, :1], b[:, :1]]))


@pytest.mark.messages
def test_point_to_point() -> None:
    sender, receiver = GraphBuilder(), GraphBuilder()
    x = sender.input("x", (2,))
    sending = sender.finish(sender.wait(sender.call(C10D.isend.default, x, 1, 7, "0")))
    buffer = receiver.call(ATEN.clone.default, receiver.input("y", (2,)))
    receiving = receiver.finish(receiver.wait(receiver.call(C10D.irecv.default, buffer, 0, 7, "0")))
    inputs = per_rank((2,))
    _, received = evaluate([sending, receiving], inputs, sender.groups)
    assert torch.equal(received[0], inputs[0][0])


@pytest.mark.messages
def test_a_batch_of_point_to_point_operations() -> None:
    graphs = []
    for peer in (1, 0):
        builder = GraphBuilder()
        x = builder.input("x", (2,))
        buffer = builder.call(ATEN.zeros_like.default, x)
        made = builder.call(C10D.batch_p2p_ops.default, ["isend", "irecv"], [peer, peer], [0, 0], [x, buffer], "0")
        graphs.append(builder.finish(builder.wait(builder.call(operator.getitem, made, 1))))
    inputs = per_rank((2,))
    first, second = evaluate(graphs, inputs, GroupTable({"0": (0, 1)}))
    assert torch.equal(first[0], inputs[1][0])
    assert torch.equal(second[0], inputs[0][0])


def test_a_result_read_before_its_wait_is_poison() -> None:
    builder = GraphBuilder()
    start = builder.call(C10D.all_reduce.default, builder.input("x", (4,)), "sum", "0")
    early = builder.call(ATEN.clone.default, start)
    gm = builder.finish(early, builder.wait(start))
    ((early_value, value), _) = evaluate(gm, per_rank((4,)), builder.groups)
    assert value.tolist() == [10.0, 12.0, 14.0, 16.0]
    assert not torch.equal(early_value, value)


def test_in_place_overwrites_the_buffer_at_the_wait() -> None:
    builder = GraphBuilder()
    own = builder.call(ATEN.clone.default, builder.input("x", (2,)))
    builder.wait(builder.call(C10D.all_reduce_.default, own, "sum", "0"))
    gm = builder.finish(builder.call(ATEN.neg.default, own))
    inputs = per_rank((2,))
    ((value,), _) = evaluate(gm, inputs, builder.groups)
    assert value.tolist() == [-10.0, -12.0]
    assert inputs[0][0].tolist() == [0.0, 1.0]


def test_ranks_that_start_different_collectives_are_told_apart() -> None:
    graphs = []
    for reduce in (True, False):
        builder = GraphBuilder()
        x = builder.input("x", (2,))
        graphs.append(builder.finish(builder.all_reduce(x) if reduce else builder.all_gather(x)))
    with pytest.raises(EvaluationError, match="collective 0 of group 0 is _c10d_functional::all_reduce"):
        evaluate(graphs, per_rank((2,)), GroupTable({"0": (0, 1)}))


def test_ranks_that_wait_for_each_other_are_named() -> None:
    graphs = []
    for groups in (("a", "b"), ("b", "a")):
        builder = GraphBuilder({"a": (0, 1), "b": (1, 0)})
        x = builder.input("x", (2,))
        graphs.append(builder.finish(*(builder.all_reduce(x, "sum", group) for group in groups)))
    with pytest.raises(EvaluationError, match=r"rank 0 waits for collective 0 .* for ranks \[1\]"):
        evaluate(graphs, per_rank((2,)), GroupTable({"a": (0, 1), "b": (1, 0)}))


def test_coalesced_results_are_promised_one_by_one() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (2,))
    y = builder.call(ATEN.neg.default, x)
    made = builder.call(C10D.all_gather_into_tensor_coalesced.default, [x, y], 2, "0")
    first, second = (builder.call(operator.getitem, made, i) for i in range(2))
    gm = builder.finish(builder.wait(first), builder.wait(second))
    ((a, b), _) = evaluate(gm, per_rank((2,)), builder.groups)
    assert a.tolist() == [0.0, 1.0, 10.0, 11.0]
    assert torch.equal(b, -a)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.int64])
def test_dtypes_are_kept(dtype: torch.dtype) -> None:
    builder = GraphBuilder()
    gm = builder.finish(builder.all_reduce(builder.input("x", (4,), dtype)))
    ((value,), _) = evaluate(gm, sample_inputs(gm, 2), builder.groups)
    assert value.dtype is dtype


def test_too_few_inputs_and_unknown_reductions_are_errors() -> None:
    builder = GraphBuilder()
    gm = builder.finish(builder.all_reduce(builder.input("x", (4,)), "median"))
    with pytest.raises(EvaluationError, match="too few inputs"):
        evaluate(gm, [[], []], builder.groups)
    with pytest.raises(EvaluationError, match="reduce op 'median'"):
        evaluate(gm, per_rank((4,)), builder.groups)
