"""The rank harness: it must notice every way in which a rank can go wrong, and outlive it."""

from __future__ import annotations

import operator
import os
import signal
import time
from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from torch import fx

from tests.support.compare import Tolerance, compare, run_graph
from tests.support.gloo import PerRank, RankError, Ranks, RanksByWorldSize

c10d = torch.ops._c10d_functional


def summed(value: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(value)
    return value


def rank_and_threads() -> tuple[int, int, int]:
    return dist.get_rank(), dist.get_world_size(), torch.get_num_threads()


def raise_on(rank: int) -> int:
    if dist.get_rank() == rank:
        raise LookupError(f"planted on {rank}")
    dist.barrier()
    return rank


def raise_everywhere() -> None:
    dist.all_reduce(torch.ones(1), async_op=dist.get_rank() == 0)
    raise LookupError("planted everywhere")


def die_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def wait_for_nobody() -> None:
    if dist.get_rank() == 0:
        dist.recv(torch.ones(1), src=1)


def test_answers_come_back_in_rank_order(ranks: RanksByWorldSize) -> None:
    assert ranks(2).run(rank_and_threads) == [(0, 2, 1), (1, 2, 1)]


def test_the_same_processes_serve_the_whole_module(ranks: RanksByWorldSize) -> None:
    ranks(2).run(rank_and_threads)
    before = ranks(2).pids
    ranks(2).run(rank_and_threads, reset_compiler=True)
    assert ranks(2).pids == before
    assert len(before) == 2


def test_each_rank_gets_its_own_argument(ranks: RanksByWorldSize) -> None:
    answers = ranks(4).run(summed, PerRank([torch.tensor([10.0**rank]) for rank in range(4)]))
    assert all(torch.equal(answer, torch.tensor([1111.0])) for answer in answers)


def test_a_per_rank_argument_of_the_wrong_length_is_refused(ranks: RanksByWorldSize) -> None:
    with pytest.raises(ValueError, match="3 values for 2 ranks"):
        ranks(2).run(summed, PerRank([1, 2, 3]))


def test_a_local_function_is_refused(ranks: RanksByWorldSize) -> None:
    with pytest.raises(ValueError, match="at module level"):
        ranks(2).run(lambda: None)


def test_an_exception_on_one_rank_names_it_and_the_pool_works_on(ranks: RanksByWorldSize) -> None:
    with pytest.raises(RankError) as caught:
        ranks(2).run(raise_on, 1)
    assert "LookupError: planted on 1" in caught.value.failures[1]
    assert "in raise_on" in caught.value.failures[1]
    assert [rank for rank, _, _ in ranks(2).run(rank_and_threads)] == [0, 1]


def test_an_unmatched_collective_does_not_reach_the_next_job(ranks: RanksByWorldSize) -> None:
    with pytest.raises(RankError) as caught:
        ranks(2).run(raise_everywhere)
    assert sorted(caught.value.failures) == [0, 1]
    answers = ranks(2).run(summed, PerRank([torch.tensor([3.0]), torch.tensor([4.0])]))
    assert [answer.item() for answer in answers] == [7.0, 7.0]


def test_a_killed_rank_is_reported_and_replaced(ranks: RanksByWorldSize) -> None:
    with pytest.raises(RankError, match="rank 1: ended with exit code -9"):
        ranks(2).run(die_on, 1)
    assert len(ranks(2).run(rank_and_threads)) == 2


def test_a_hanging_rank_ends_at_the_deadline_with_its_stack() -> None:
    with Ranks(2) as pool:
        pool.run(rank_and_threads)
        began = time.monotonic()
        with pytest.raises(RankError) as caught:
            pool.run(wait_for_nobody, deadline_s=2.0)
        assert time.monotonic() - began < 15
        assert "wait_for_nobody" in caught.value.failures[0]
        assert 1 not in caught.value.failures


def test_stop_leaves_no_process() -> None:
    pool = Ranks(2)
    pool.run(rank_and_threads)
    pids = pool.pids
    pool.stop()
    assert pool.pids == []
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


# -- graphs -----------------------------------------------------------------------------------------------------------


def chain(*ops: tuple[str, str], scale: float = 1.0) -> fx.GraphModule:
    """x -> all_reduce over each (reduce op, group) -> times `scale`."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    for reduce_op, group in ops:
        started = graph.call_function(c10d.all_reduce.default, (value, reduce_op, group))
        value = graph.call_function(c10d.wait_tensor.default, (started,))
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (value, scale)),))
    return fx.GraphModule(torch.nn.Module(), graph)


def inputs(world_size: int) -> list[Sequence[torch.Tensor]]:
    return [(torch.tensor([10.0**rank, float(rank)]),) for rank in range(world_size)]


GRID = {"pair": ((0, 1), (2, 3)), "cross": ((0, 2), (1, 3)), "all": (0, 1, 2, 3)}


def test_several_groups_in_one_graph_reach_their_own_ranks(ranks: RanksByWorldSize) -> None:
    pair = run_graph(ranks(4), chain(("sum", "pair")), inputs(4), GRID)
    assert [run.outputs[0][0].item() for run in pair] == [11.0, 11.0, 1100.0, 1100.0]
    both = run_graph(ranks(4), chain(("sum", "pair"), ("max", "cross"), ("sum", "all")), inputs(4), GRID)
    assert [run.outputs[0][0].item() for run in both] == [4400.0] * 4


def test_equal_graphs_compare_equal(ranks: RanksByWorldSize) -> None:
    graph = chain(("sum", "pair"), ("sum", "cross"))
    compare(ranks(4), graph, chain(("sum", "cross"), ("sum", "pair")), inputs(4), GRID)
    compare(ranks(4), graph, chain(("sum", "all")), inputs(4), GRID, tolerance=Tolerance(1e-6, 0.0))


def test_a_wrong_group_is_detected_on_the_ranks_it_hits(ranks: RanksByWorldSize) -> None:
    with pytest.raises(AssertionError, match="rank 0, output 0") as caught:
        compare(ranks(4), chain(("sum", "pair")), chain(("sum", "cross")), inputs(4), GRID)
    assert all(f"rank {rank}," in str(caught.value) for rank in range(4))


def test_one_differing_rank_is_detected(ranks: RanksByWorldSize) -> None:
    good = chain(("sum", "all"))
    odd = [good, good, good, chain(("sum", "all"), scale=2.0)]
    with pytest.raises(AssertionError, match="rank 3, output 0") as caught:
        compare(ranks(4), good, odd, inputs(4), GRID)
    assert "rank 0," not in str(caught.value)


def test_a_last_bit_counts_unless_a_tolerance_is_given(ranks: RanksByWorldSize) -> None:
    exact, off = chain(("sum", "w")), chain(("sum", "w"), scale=1.0 + 2.0**-23)
    with pytest.raises(AssertionError, match="bytes differ"):
        compare(ranks(2), exact, off, inputs(2), {"w": (0, 1)})
    compare(ranks(2), exact, off, inputs(2), {"w": (0, 1)}, tolerance=Tolerance(1e-6, 0.0))
    with pytest.raises(AssertionError, match="rank 0, output 0"):
        compare(
            ranks(2), exact, chain(("sum", "w"), scale=2.0), inputs(2), {"w": (0, 1)}, tolerance=Tolerance(1e-6, 0.0)
        )


def test_an_input_overwritten_by_only_one_graph_is_detected(ranks: RanksByWorldSize) -> None:
    in_place = fx.Graph()
    x = in_place.placeholder("x")
    started = in_place.call_function(c10d.all_reduce_.default, (x,), {"reduce_op": "sum", "group_name": "w"})
    waited = in_place.call_function(c10d.wait_tensor.default, (started,))
    in_place.output((in_place.call_function(torch.ops.aten.mul.Tensor, (waited, 1.0)),))
    overwriting = fx.GraphModule(torch.nn.Module(), in_place)
    with pytest.raises(AssertionError, match="rank 1, input 0"):
        compare(ranks(2), chain(("sum", "w")), overwriting, inputs(2), {"w": (0, 1)})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_every_dtype_travels(ranks: RanksByWorldSize, dtype: torch.dtype) -> None:
    graph = fx.Graph()
    graph.output((graph.placeholder("x"), graph.placeholder("y")))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    values = [(torch.ones(3).to(dtype), torch.ones(0, 2).to(dtype))] * 2
    compare(ranks(2), gm, gm, values)


def test_attributes_and_nested_graphs_travel(ranks: RanksByWorldSize) -> None:
    root = torch.nn.Module()
    root.inner = chain(("sum", "w"), scale=0.5)
    root.register_buffer("bias", torch.tensor([1.0, 2.0]))
    graph = fx.Graph()
    inner = graph.call_module("inner", (graph.placeholder("x"),))
    first = graph.call_function(operator.getitem, (inner, 0))
    graph.output(graph.call_function(torch.ops.aten.add.Tensor, (first, graph.get_attr("bias"))))
    runs = run_graph(ranks(2), fx.GraphModule(root, graph), inputs(2), {"w": (0, 1)})
    assert torch.equal(runs[0].outputs[0], torch.tensor([6.5, 2.5]))
