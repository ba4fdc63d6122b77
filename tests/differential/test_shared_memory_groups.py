"""Shared memory and process groups: who may share, whose timeout counts, when memory is freed; operators in graphs."""

from __future__ import annotations

import gc
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint import fake_world
from counterpoint.errors import SharedMemoryError
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.shared_memory import OPS
from counterpoint.runtime.shared_memory import Workspaces, agree, build, probe, workspace_of
from tests.support.compare import compare
from tests.support.gloo import PerRank

pytestmark = pytest.mark.cxx
C10D = torch.ops._c10d_functional


def shared_files() -> int:
    """Descriptors and mappings of shared memory in this process."""
    links = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return sum("memfd:counterpoint" in line for line in (*links, *mapped))


def job_freed() -> tuple[int, int, int, int]:
    workspace_of()
    before = shared_files()
    group = dist.new_group()
    mine = torch.ones(300_000)
    OPS.shm_all_reduce(mine, "sum", group.group_name)
    with workspace_of(group).borrow((10,), torch.float32) as loan:
        loan.publish()
        total = sum(loan.of(peer)[0].item() for peer in loan.others())
    during = shared_files()
    del loan
    dist.destroy_process_group(group)
    del group
    gc.collect()
    return before, during, shared_files(), int(total)


def job_two_groups() -> list[bool]:
    """Overlapping groups, each with its own memory, used in turn and by two threads at once."""
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[rank // 2]
    results: dict[str, bool] = {}

    def in_group(name: str, group: dist.ProcessGroup | None, members: list[int]) -> None:
        workspace = workspace_of(group)
        right = True
        for number in range(200):
            got = workspace.all_reduce(torch.full((50,), float(rank + number)))
            right &= got.tolist() == [float(sum(members) + number * len(members))] * 50
        results[name] = right

    workspace_of(mine)
    workspace_of()
    threads = [
        threading.Thread(target=in_group, args=("pair", mine, [0, 1] if rank < 2 else [2, 3])),
        threading.Thread(target=in_group, args=("world", None, list(range(world)))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results["pair"], results["world"]]


def job_timeout() -> str:
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    workspace = workspace_of(group)
    if dist.get_rank() == 0:
        try:
            workspace.all_reduce(torch.ones(3))
        except SharedMemoryError as error:
            return str(error)
        return "no error"
    # Rank 1 does nothing until rank 0 has given up: the world's collective below is what it waits for.
    return str(workspace.timeout_s)


def job_timeout_then_meet() -> str:
    said = job_timeout()
    dist.barrier()
    return said


def job_probe(spoil: str) -> tuple[bool, str]:
    """One rank cannot; all of them say so."""
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        if dist.get_rank() == 1:
            spoilers[spoil](patched)
        found = Workspaces().probe()
    return found.available, found.reason


def no_compiler(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(agree, "kernels", lambda: build.built_library(compiler=None))
    patched.setenv("CXX", "no-such-compiler")


def other_host(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(agree, "host_identity", lambda: "elsewhere")


def other_file(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(agree.Segment, "of_process", lambda *rest: agree.Segment.create(*rest[-2:]))


spoilers = {"compiler": no_compiler, "host": other_host, "file": other_file, "nothing": lambda _: None}


def job_interrupted() -> str:
    """A signal whose handler raises ends the wait."""
    import signal

    def handler(*_: Any) -> None:
        raise KeyboardInterrupt

    group = dist.new_group()
    workspace = workspace_of(group)
    said = "not asked"
    if dist.get_rank() == 0:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            workspace.all_reduce(torch.ones(3))
        except KeyboardInterrupt:
            said = "interrupted"
    dist.barrier()
    if dist.get_rank() == 1:
        try:
            workspace.all_reduce(torch.ones(3))
        except SharedMemoryError as error:
            said = str(error)
    return said


def test_memory_is_freed_with_its_group(ranks) -> None:
    for before, during, after, _ in ranks(2).run(job_freed):
        assert before > 0
        assert during > before
        assert after == before


def test_groups_do_not_disturb_each_other(ranks) -> None:
    assert ranks(4).run(job_two_groups) == [[True, True]] * 4


def test_the_timeout_is_that_of_the_group(ranks) -> None:
    said, timeout = ranks(2).run(job_timeout_then_meet)
    assert "rank 1 did not come within 0.5 s" in said
    assert timeout == "0.5"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ("compiler", "rank 1: no C++ compiler found (looked for no-such-compiler)"),
        ("host", "ranks [0] and [1] are on different hosts, or in containers that do not see each other's processes"),
        ("file", "is another file than rank 0 made"),
    ],
)
def test_what_one_rank_lacks_all_ranks_say(ranks, spoil: str, reason: str) -> None:
    first, second = ranks(2).run(job_probe, spoil)
    assert first == second
    assert first[0] is False
    assert reason in first[1]


def test_where_nothing_is_missing_it_works(ranks) -> None:
    assert ranks(2).run(job_probe, "nothing") == [(True, "2 ranks of one host share memory")] * 2


def test_a_world_that_only_pretends_shares_nothing() -> None:
    with fake_world(4):
        assert not probe()


def test_a_signal_ends_the_wait_and_the_others_are_told(ranks) -> None:
    first, second = ranks(2).run(job_interrupted)
    assert first == "interrupted"
    assert "rank 0 was interrupted, as rank 0 noticed" in second


# -- in graphs --------------------------------------------------------------------------------------------------------


def graph_of(shared: bool) -> torch.fx.GraphModule:
    """One of everything, by messages or in shared memory."""
    builder = GraphBuilder({"all": (0, 1)})
    x = builder.input("x", (6, 4))

    def call(name: str, *args: Any) -> Any:
        if shared:
            return builder.call(getattr(OPS, f"shm_{name}").default, *args)
        names = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}
        started = builder.call(getattr(C10D, names.get(name, name)).default, *args)
        return builder.call(C10D.wait_tensor.default, started)

    total = call("all_reduce", x, "sum", "all")
    gathered = call("all_gather", total, 2, "all")
    rows = call("reduce_scatter", gathered, "max", 2, "all")
    copied = builder.call(torch.ops.aten.clone.default, rows)
    over = call("all_reduce_", copied, "min", "all")
    return builder.finish(total, gathered, rows, over)


def job_imports() -> None:
    """Running anything of this module registers the operators on the rank."""


def test_a_graph_with_the_operators_does_what_messages_do(ranks) -> None:
    ranks(2).run(job_imports)
    inputs = [[torch.randn(6, 4)], [torch.randn(6, 4)]]
    compare(ranks(2), graph_of(False), graph_of(True), inputs, {"all": (0, 1)})


def job_opcheck() -> None:
    name = dist.group.WORLD.group_name
    value = torch.ones(4, 3).t()
    checks = ("test_schema", "test_faketensor")
    for operator, args in (
        (OPS.shm_all_reduce.default, (value, "sum", name)),
        (OPS.shm_one_shot_all_reduce_.default, (value.clone(), "sum", name)),
        (OPS.shm_all_gather.default, (value, 2, name)),
        (OPS.shm_reduce_scatter.default, (torch.ones(4, 3), "sum", 2, name)),
    ):
        torch.library.opcheck(operator, args, test_utils=checks)
    for operator, args, shape in (
        (OPS.shm_two_shot_all_reduce_out.default, (value, "sum", name), (3, 4)),
        (OPS.shm_all_gather_out.default, (value, 2, name), (6, 4)),
        (OPS.shm_reduce_scatter_out.default, (torch.ones(4, 3), "sum", 2, name), (2, 3)),
    ):
        torch.library.opcheck(operator, args, {"out": torch.empty(shape)}, test_utils=checks)


def test_schemas_and_fakes_say_what_runs(ranks) -> None:
    ranks(2).run(job_opcheck)


def job_first_use(value: Tensor) -> list[float]:
    """The operator alone sets up what it needs."""
    group = dist.new_group()
    return OPS.shm_all_reduce(value, "sum", group.group_name).tolist()


def test_an_operator_sets_up_its_group_at_first_use(ranks) -> None:
    assert ranks(2).run(job_first_use, PerRank([torch.ones(2), torch.ones(2)])) == [[2.0, 2.0]] * 2
