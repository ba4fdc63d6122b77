"""The wind tunnel computes what ranks with equal data would compute, takes the time it is told, and leaves no trace."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import counterpoint
from counterpoint.errors import GroupError, OptionError
from counterpoint.ir import semantics
from counterpoint.ir.ops import Kind
from counterpoint.runtime.tunnel import Timing, Tunnel, movement, open_tunnel
from counterpoint.runtime.tunnel.channels import HostChannel

pytestmark = [
    # Torch calls its own deprecated names, and tracing an autograd function makes an object of it.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
]

WORLD = 6
RANK = 2
HOUR_US = 3.6e9


class Fixed:
    """Every collective takes so long; remembers what it was asked."""

    def __init__(self, us: float = 50.0) -> None:
        self.us, self.asked = us, list[tuple[Kind, float, tuple[int, ...]]]()

    def collective_us(self, kind: Kind, nbytes: float, ranks: Sequence[int], *, device_type: str) -> float:
        self.asked.append((kind, nbytes, tuple(ranks)))
        return self.us


@pytest.fixture
def costs() -> Fixed:
    return Fixed()


@pytest.fixture
def tunnel(costs: Fixed) -> Iterator[Tunnel]:
    with open_tunnel(WORLD, rank=RANK, timing=Timing(costs=costs)) as opened:
        yield opened


# -- what is left on this rank: the reference is the meaning of each collective, on ranks that hold the same -----------

REDUCTIONS = ["sum", "avg", "product", "min", "max"]


@pytest.mark.parametrize("reduce_op", [*REDUCTIONS, "band", "bor", "bxor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_reduction_is_that_of_equal_ranks(reduce_op: str, dtype: torch.dtype) -> None:
    if dtype.is_floating_point and reduce_op.startswith("b"):
        pytest.skip("floats have no bits to combine")
    if dtype is torch.int64 and reduce_op == "avg":
        pytest.skip("an average of integers is not an integer")
    value = torch.tensor([1, 2, 3, 1], dtype=dtype)
    found = value.clone()
    movement.reduced_into(found, found, reduce_op, 3)
    assert torch.equal(found, semantics.reduce(reduce_op, [value] * 3))


@pytest.mark.parametrize("shape", [(4,), (2, 3), (0, 5), ()])
def test_a_gather_repeats_the_own_part(shape: tuple[int, ...]) -> None:
    part = torch.randn(shape)
    target = torch.full((3 * (shape[0] if shape else 1), *shape[1:]), float("nan"))
    movement.gathered_into(target, part)
    assert torch.equal(target, torch.cat([part.reshape(1) if not shape else part] * 3))


def test_a_scatter_takes_the_own_row() -> None:
    value, target = torch.arange(12.0).reshape(6, 2), torch.full((2, 2), float("nan"))
    movement.scattered_into(target, value, "sum", 1, 3)
    assert torch.equal(target, value[2:4] * 3)


def test_an_uneven_exchange_fills_every_slot() -> None:
    value, target = torch.arange(5.0), torch.full((7,), float("nan"))
    movement.exchanged_into(target, value, [2, 2, 3], [1, 2, 2], 1, 3)
    assert target.tolist() == [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0]


# -- time --------------------------------------------------------------------------------------------------------------


def test_collectives_of_a_channel_follow_each_other_and_channels_run_side_by_side() -> None:
    one, other = HostChannel(), HostChannel()
    first = one.launch(lambda: None, HOUR_US, 0)
    second = one.launch(lambda: None, HOUR_US, 0)
    beside = other.launch(lambda: None, HOUR_US, 0)
    assert second.end_s - first.end_s == pytest.approx(3600)
    assert beside.end_s < second.end_s
    assert not first.done()


@pytest.mark.parametrize("contention", [0, 1])
def test_who_waits_waits_until_the_end(contention: int) -> None:
    ticket = HostChannel().launch(lambda: None, 2000, contention)
    ticket.wait()
    assert time.perf_counter() >= ticket.end_s
    assert ticket.done()


def test_a_group_of_one_takes_no_time(costs: Fixed) -> None:
    assert Timing(costs=costs).us(Kind.ALL_REDUCE, 1e9, [3], "cpu") == 0
    assert costs.asked == []


def test_the_cost_model_is_asked_for_whole_tensors_and_global_ranks(tunnel: Tunnel, costs: Fixed) -> None:
    odd = dist.new_group([0, 2, 4])
    costs.asked.clear()
    whole, part = torch.zeros(12), torch.ones(4)
    dist.all_gather_into_tensor(whole, part, group=odd)
    dist.reduce_scatter_tensor(part, whole, group=odd)
    dist.all_reduce(part)
    assert costs.asked == [
        (Kind.ALL_GATHER, 48, (0, 2, 4)),
        (Kind.REDUCE_SCATTER, 48, (0, 2, 4)),
        (Kind.ALL_REDUCE, 16, tuple(range(WORLD))),
    ]


# -- every way of communicating ----------------------------------------------------------------------------------------


def _coalesced(x: torch.Tensor) -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    with _coalescing_manager(device=x.device):
        dist.all_reduce(x)
        dist.all_reduce(x.clone())


def _out_variant(x: torch.Tensor) -> None:
    group, out = dist.group.WORLD.group_name, torch.zeros(WORLD * x.numel())
    started = torch.ops._c10d_functional.all_gather_into_tensor_out(x, WORLD, group, out=out)
    assert torch.equal(torch.ops._c10d_functional.wait_tensor(started), x.repeat(WORLD))


def _exchange_peers(x: torch.Tensor) -> None:
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 0), dist.P2POp(dist.irecv, x.clone(), 1)]):
        work.wait()


WAYS: dict[str, tuple[Any, str]] = {
    "all_reduce": (lambda x: dist.all_reduce(x), "all_reduce"),
    "all_reduce async": (lambda x: dist.all_reduce(x, async_op=True).wait(), "all_reduce"),
    "reduce": (lambda x: dist.reduce(x, 0), "reduce"),
    "broadcast": (lambda x: dist.broadcast(x, 0), "broadcast"),
    "all_gather": (lambda x: dist.all_gather([x.clone() for _ in range(WORLD)], x), "all_gather"),
    "gather": (lambda x: dist.gather(x, [x.clone() for _ in range(WORLD)], dst=RANK), "all_gather"),
    "scatter": (lambda x: dist.scatter(x, [x.clone() for _ in range(WORLD)], src=RANK), "scatter"),
    "reduce_scatter": (lambda x: dist.reduce_scatter(x.clone(), [x] * WORLD), "reduce_scatter"),
    "all_to_all": (lambda x: dist.all_to_all([x.clone() for _ in range(WORLD)], [x] * WORLD), "all_to_all"),
    "all_to_all_single": (lambda x: dist.all_to_all_single(x.clone(), x), "all_to_all"),
    "barrier": (lambda x: dist.barrier(), "barrier"),
    "send": (lambda x: dist.send(x, 0), "send"),
    "recv": (lambda x: dist.recv(x, 0), "recv"),
    "objects": (lambda x: dist.all_gather_object([None] * WORLD, "hello"), "all_gather"),
    "coalesced": (_coalesced, "all_reduce"),
    "out variant": (_out_variant, "all_gather"),
    "peers": (_exchange_peers, "send"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_communicating_goes_through(tunnel: Tunnel, way: str) -> None:
    run, kind = WAYS[way]
    run(torch.arange(6.0))
    assert kind in [summary.kind for summary in tunnel.log.summary()]


def gradients(model: nn.Module, run: Any = None) -> list[torch.Tensor]:
    model.zero_grad()
    ((run or model)(torch.arange(32.0).reshape(4, 8)) ** 2).mean().backward()
    return [_full(p.grad).clone() for p in model.parameters()]


def _full(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def test_averaged_gradients_are_the_own_ones_eager_and_compiled(tunnel: Tunnel) -> None:
    alone = gradients(network())
    wrapped = counterpoint.replicate(network())
    compiled = torch.compile(wrapped, backend="counterpoint", options={"codegen": "eager"})
    eager = nn.parallel.DistributedDataParallel(network())
    # Six divisions and a product by six round.
    for found in (gradients(eager), gradients(wrapped), gradients(wrapped, compiled)):
        torch.testing.assert_close(found, alone)
    assert {"all_reduce"} <= {summary.kind for summary in tunnel.log.summary()}


def test_sharded_training_runs(tunnel: Tunnel) -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (WORLD,))
    for wrap in (fully_shard, counterpoint.fully_shard):
        assert all(g.isfinite().all() for g in gradients(wrap(network(), mesh=mesh)))
    assert {"all_gather", "reduce_scatter"} <= {summary.kind for summary in tunnel.log.summary()}


def test_waiting_is_taken_down_as_exposed(tunnel: Tunnel, costs: Fixed) -> None:
    costs.us = 3000.0
    work = dist.all_reduce(torch.ones(1), async_op=True)
    tunnel.log.clear()
    dist.all_reduce(torch.ones(1))
    work.wait()  # finished before the log was cleared: counts for nobody
    (call,) = tunnel.log
    assert call.exposed_us > 0
    assert (call.duration_us, call.nbytes) == (3000.0, 4)


# -- opening and closing -----------------------------------------------------------------------------------------------


def test_a_program_may_initialise_as_it_is_used_to(tunnel: Tunnel) -> None:
    dist.init_process_group("nccl", world_size=WORLD, rank=5, init_method="tcp://10.0.0.1:1")
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    assert (dist.get_world_size(), dist.get_rank()) == (WORLD, RANK)
    assert dist.new_group([0, RANK], backend="gloo").size() == 2


def test_a_program_that_asks_for_another_world_is_refused(tunnel: Tunnel) -> None:
    with pytest.raises(GroupError, match="asks for 4 ranks, and the tunnel has 6"):
        dist.init_process_group("gloo", world_size=4)


def test_it_leaves_nothing_behind(costs: Fixed) -> None:
    before = dist.init_process_group, dist.new_group
    with pytest.raises(RuntimeError, match="planted"), open_tunnel(2, timing=Timing(costs=costs)):
        raise RuntimeError("planted")
    assert not dist.is_initialized()
    assert (dist.init_process_group, dist.new_group) == before
    assert "tunnel" not in dist.Backend.backend_list
    with open_tunnel(3, timing=Timing(costs=costs)):
        assert dist.get_world_size() == 3


@pytest.mark.parametrize(("size", "rank"), [(0, 0), (4, 4), (4, -1)])
def test_a_rank_that_is_not_in_the_world_is_refused(size: int, rank: int, costs: Fixed) -> None:
    with pytest.raises(OptionError), open_tunnel(size, rank=rank, timing=Timing(costs=costs)):
        pass


def test_a_second_world_is_refused(tunnel: Tunnel, costs: Fixed) -> None:
    with pytest.raises(GroupError, match="already initialised"), open_tunnel(2, timing=Timing(costs=costs)):
        pass
