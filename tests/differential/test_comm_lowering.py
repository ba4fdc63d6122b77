"""Lowered collectives on real gloo ranks: compiled programs compute what eager mode does, in whichever form; ranks find
out what they can do before they compile, and where one does not come the library does the work.

Values are small whole numbers, so every comparison is bitwise; each program runs twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo import mark_dynamic

from counterpoint._torch import torch_version
from counterpoint.cost.capabilities import Capabilities, absent
from counterpoint.inductor.capabilities import Assemblies
from counterpoint.report.history import clear_reports, reports
from counterpoint.runtime import hierarchical, probe
from counterpoint.runtime.assembly import assemble
from counterpoint.runtime.probe import PROBES
from tests.differential.test_lowering import C10D, ROWS, grows, wait
from tests.support.gloo import PerRank, RanksByWorldSize


def everything(x: Tensor, w: Tensor) -> list[Tensor]:
    """All that has another form, of inputs that die, live on, are views, permuted, shared, empty or the caller's."""
    group, size = dist.group.WORLD.group_name, dist.get_world_size()
    live, shared = w @ x, (x @ w) @ w
    # The library's gather took nothing but contiguous tensors before torch 2.12.
    turned = x.t() if torch_version() >= (2, 12) else x.t().contiguous()
    started = [
        C10D.all_reduce(x @ w, "sum", group),
        C10D.all_reduce(live, "max", group),
        C10D.all_reduce(x, "min", group),
        C10D.all_reduce((x @ x).view(-1)[:ROWS], "sum", group),
        C10D.all_reduce((w @ w).t(), "sum", group),
        C10D.all_reduce(shared, "sum", group),
        C10D.all_reduce(shared, "product", group),
        C10D.all_reduce(x[:0], "sum", group),
        C10D.all_gather_into_tensor(x @ w, size, group),
        C10D.all_gather_into_tensor(turned, size, group),
        C10D.reduce_scatter_tensor(x @ x, "sum", size, group),
        C10D.reduce_scatter_tensor(live, "max", size, group),
        C10D.broadcast(x @ w, size - 1, group),
    ]
    many = C10D.all_reduce_coalesced([x @ w, x], "sum", group)
    gathers = C10D.all_gather_into_tensor_coalesced([x, live], size, group)
    scatters = C10D.reduce_scatter_tensor_coalesced([x @ w, w], "sum", size, group)
    beside = (live + 1) @ w
    summed = wait(C10D.all_reduce(wait(C10D.all_reduce(x @ w, "sum", group)) + 1, "sum", group))
    return [*(wait(each) + 1 for each in started), live, beside, *wait(many), *wait(gathers), *wait(scatters), summed]


def compile_and_compare(function: Callable[..., Any], codegen: str, passes: str) -> tuple[list[str], list[str]]:
    """What differs between eager and compiled mode on this rank, and the forms that were chosen."""
    clear_reports()
    generator = torch.Generator().manual_seed(dist.get_rank())
    options = {"passes": passes, "on_error": "raise", "verify": "full", "codegen": codegen}
    compiled = torch.compile(function, backend="counterpoint", options=options)
    wrong = []
    for turn in range(2):
        rows = ROWS * (turn + 1) if function is grows else ROWS
        x, w = (torch.randint(-2, 3, (n, ROWS), generator=generator).float() for n in (rows, ROWS))
        if function is grows:
            mark_dynamic(x, 0)
        given = x.clone(), w.clone()
        pairs = zip((*function(x, w), *given), (*compiled(x, w), x, w), strict=True)
        wrong += [f"turn {turn}, value {i}" for i, (one, other) in enumerate(pairs) if not torch.equal(one, other)]
    return wrong, [entry.verdict.partner or entry.verdict.code for entry in reports()[0].ledgers[0]]


LOWER = "lower-collectives"


@pytest.mark.parametrize(("world", "codegen"), [(2, "inductor"), (4, "eager")])
@pytest.mark.cxx
def test_all_forms_in_shared_memory(ranks: RanksByWorldSize, world: int, codegen: str) -> None:
    answers = ranks(world).run(compile_and_compare, everything, codegen, LOWER, reset_compiler=True)
    assert [wrong for wrong, _ in answers] == [[]] * world
    assert len({tuple(chosen) for _, chosen in answers}) == 1
    chosen = answers[0][1]
    assert {"one-shot, in place", "one-shot", "shared memory"} <= set(chosen)
    left = set(chosen) - {"one-shot, in place", "one-shot", "two-shot", "shared memory"}
    assert left == ({"no-other-form"} if codegen == "inductor" else {"library, in place"})


@pytest.mark.cxx
def test_sizes_that_are_not_known(ranks: RanksByWorldSize) -> None:
    passes = f"schedule-waits,{LOWER}"
    answers = ranks(2).run(compile_and_compare, grows, "inductor", passes, reset_compiler=True)
    assert [wrong for wrong, _ in answers] == [[]] * 2
    assert answers[0][1] == ["one-shot or two-shot by size", "shared memory"]


# -- several hosts ----------------------------------------------------------------------------------------------------


def as_if_on_hosts(members: int) -> Any:
    """As if so many ranks were on each host, in order."""
    return mock.patch.object(probe, "host_identity", return_value=f"host {dist.get_rank() // members}")


def job_two_hosts() -> list[str]:
    """The operators beside those of the library, for every kind of shape."""
    group = dist.new_group()
    name, size, rank = group.group_name, group.size(), group.rank()
    ours, wrong = torch.ops.counterpoint, []
    with as_if_on_hosts(2):
        hierarchical.HIERARCHIES.of_name(name)
    for shape in ((8, 3), (4,), (5,), (), (0, 2), (16, 2, 3)):
        for dtype in (torch.float32, torch.int64, torch.bfloat16):
            count = torch.Size(shape).numel()
            value = (torch.arange(count) % 5 + rank).to(dtype).reshape(shape)
            for op in ("sum", "max", "product"):
                expected = wait(C10D.all_reduce(value, op, name))
                if not torch.equal(ours.hierarchical_all_reduce(value, op, name), expected):
                    wrong.append(f"all_reduce {op} {shape} {dtype}")
            # gloo gathers no scalars.
            expected = wait(C10D.all_gather_into_tensor(value.reshape(shape or (1,)), size, name))
            if not torch.equal(ours.hierarchical_all_gather(value, size, name), expected):
                wrong.append(f"all_gather {shape} {dtype}")
            if shape and shape[0] % size == 0:
                expected = wait(C10D.reduce_scatter_tensor(value, "sum", size, name))
                if not torch.equal(ours.hierarchical_reduce_scatter(value, "sum", size, name), expected):
                    wrong.append(f"reduce_scatter {shape} {dtype}")
    average = ours.hierarchical_all_reduce(torch.full((3,), float(rank)), "avg", name)
    return wrong if average.tolist() == [(size - 1) / 2] * 3 else [*wrong, "avg"]


@pytest.mark.cxx
def test_inside_the_hosts_and_across_them(ranks: RanksByWorldSize) -> None:
    assert ranks(4).run(job_two_hosts) == [[]] * 4


def large(x: Tensor, w: Tensor) -> list[Tensor]:
    """So large that the second level pays."""
    group = dist.group.WORLD.group_name
    return [wait(C10D.all_reduce((x @ w).repeat(4096, 8), "sum", group))]


def job_compiled_on_two_hosts() -> tuple[list[str], list[str]]:
    found = Capabilities(
        messages=absent("-"), shared_memory=absent("-"), symmetric_memory=absent("-"), hosts=(0, 0, 1, 1)
    )
    before = PROBES.of(dist.group.WORLD, torch.device("cpu"))
    PROBES.settle(dist.group.WORLD, torch.device("cpu"), found)
    try:
        with as_if_on_hosts(2):
            return compile_and_compare(large, "eager", LOWER)
    finally:
        PROBES.settle(dist.group.WORLD, torch.device("cpu"), before)


@pytest.mark.cxx
def test_a_program_on_two_hosts(ranks: RanksByWorldSize) -> None:
    assert ranks(4).run(job_compiled_on_two_hosts, reset_compiler=True) == [([], ["hierarchical"])] * 4


# -- finding out ------------------------------------------------------------------------------------------------------


class Summed(torch.autograd.Function):
    """The sum over the ranks, with a gradient, so that a graph with it is one of training."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        summed: Tensor = wait(C10D.all_reduce(x, "sum", dist.group.WORLD.group_name))
        return summed

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        summed: Tensor = wait(C10D.all_reduce(gradient.contiguous(), "sum", dist.group.WORLD.group_name))
        return summed


def job_uneven(passes: str) -> list[str]:
    """A program whose first and last pointwise work is of one size on rank 0 alone, where inductor makes it one kernel.

    That kernel needs the second sum and stands where the first pointwise work does: before the first sum.
    """
    rows = ROWS if dist.get_rank() == 0 else ROWS - 3

    def program(x: Tensor, y: Tensor, w: Tensor) -> list[Tensor]:
        product = torch.relu(x[:rows]) @ w
        first = torch.relu(Summed.apply(x @ w)) @ w
        second = Summed.apply(y @ w) + x
        return [product, first, second]

    generator = torch.Generator().manual_seed(dist.get_rank())
    x, y, w = (torch.randint(-2, 3, (ROWS, ROWS), generator=generator).float() for _ in range(3))
    w.requires_grad_()
    expected = program(x, y, w)
    results = torch.compile(program, backend="counterpoint", options={"passes": passes})(x, y, w)
    return [f"value {i}" for i, pair in enumerate(zip(expected, results, strict=True)) if not torch.equal(*pair)]


@pytest.mark.cxx
def test_ranks_with_uneven_sizes_keep_one_order(ranks: RanksByWorldSize) -> None:
    assert ranks(2).run(job_uneven, "lower-collectives", reset_compiler=True) == [[], []]


def name_arguments(graph: torch.fx.Graph) -> None:
    """A pass that writes calls of ours with keywords, as any pass may."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.counterpoint.shm_all_reduce.default):
        node.args, node.kwargs = node.args[:1], dict(zip(("reduce_op", "group_name"), node.args[1:], strict=True))


def job_by_keyword() -> bool:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.ops.counterpoint.shm_all_reduce(x @ w, "sum", dist.group.WORLD.group_name) + 1

    x, w = (torch.full((ROWS, ROWS), dist.get_rank() + 1.0) for _ in range(2))
    options = {"passes": "", "on_error": "raise", "post_grad_custom_post_pass": name_arguments}
    return torch.equal(torch.compile(program, backend="counterpoint", options=options)(x, w), program(x, w))


@pytest.mark.cxx
def test_our_operators_may_be_called_by_keyword(ranks: RanksByWorldSize) -> None:
    assert ranks(2).run(job_by_keyword, reset_compiler=True) == [True, True]


def job_assemble(topic: str, patience_s: float | None) -> bool | None:
    if patience_s is None:
        return None
    store = dist.distributed_c10d._get_default_store()
    return assemble(store, topic, range(dist.get_world_size()), dist.get_rank(), patience_s)


def test_ranks_that_all_come_may_communicate(ranks: RanksByWorldSize) -> None:
    assert ranks(2).run(job_assemble, "both", 60.0) == [True, True]


def test_who_waits_in_vain_goes_on_alone_and_the_late_one_hears_of_it(ranks: RanksByWorldSize) -> None:
    assert ranks(2).run(job_assemble, "late", PerRank([0.2, None])) == [False, None]
    assert ranks(2).run(job_assemble, "late", PerRank([None, 60.0])) == [None, False]


def job_missed() -> list[str]:
    """A group whose ranks did not meet stays with the library, on all of them."""
    with (
        mock.patch("counterpoint.inductor.capabilities.assemble", return_value=False),
        mock.patch("counterpoint.inductor.codegen_eager.ASSEMBLIES", Assemblies(probe.Probes())),
    ):
        wrong, chosen = compile_and_compare(grows, "eager", "lower-collectives{in-place=false}")
    return [*wrong, *chosen]


def test_without_a_meeting_the_library_does_the_work(ranks: RanksByWorldSize) -> None:
    assert ranks(2).run(job_missed, reset_compiler=True) == [["no-pass", "no-pass"]] * 2


def job_runs_while_compiling() -> list[bool]:
    """One thread runs compiled code in a group, meanwhile another compiles and runs in another group."""
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(), dist.new_group()]
    options = {"passes": LOWER, "codegen": "eager"}

    def program(name: str, times: int) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            return wait(C10D.all_reduce(x * times, "sum", name)) + times

        return torch.compile(run, backend="counterpoint", options=options)

    ready = program(groups[0].group_name, 1)
    ready(torch.ones(4))
    right: list[bool] = []

    def keep_running() -> None:
        for number in range(300):
            expected = size * number + size * (size - 1) // 2 + 1
            right.append(ready(torch.full((4,), float(number + rank))).tolist() == [expected] * 4)

    thread = threading.Thread(target=keep_running)
    thread.start()
    for times in range(2, 5):
        value = program(groups[1].group_name, times)(torch.full((4,), float(rank + 1)))
        right.append(value.tolist() == [times * size * (size + 1) / 2 + times] * 4)
    thread.join()
    return [len(right) == 303, all(right)]


@pytest.mark.cxx
@pytest.mark.skipif(
    torch_version() < (2, 13), reason="older versions refuse compiled calls while another thread traces"
)
def test_one_thread_may_compile_while_another_runs(ranks: RanksByWorldSize) -> None:
    assert ranks(2).run(job_runs_while_compiling, reset_compiler=True) == [[True, True]] * 2
