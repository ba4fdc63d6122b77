"""Generating code with our pass inside, in a pretended world: alone, beside a user's pass, and without lasting marks.

The functions are made of library calls only, so that no kernel has to be compiled.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass

from counterpoint._torch import torch_version
from counterpoint.capture.world import fake_world
from counterpoint.cost.capabilities import CapabilityTable
from counterpoint.inductor.graph_pass import CounterpointPass
from counterpoint.inductor.plan import make_plan
from counterpoint.inductor.request import read_request
from counterpoint.report.history import CompileRecord, clear_reports, reports
from tests.support.lowering import one_host, table_of, two_hosts


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    clear_reports()
    with fake_world(2):
        yield


def gathers(x: Tensor, w: Tensor) -> Tensor:
    return funcol.all_gather_tensor(x @ w, 0, dist.group.WORLD) @ w


def local(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def compile_once(function: Any = gathers, backend: str = "counterpoint", **options: Any) -> CompileRecord | None:
    """Compile the function afresh; the record of it, if there is one."""
    torch.compiler.reset()
    known = len(reports())
    torch.compile(function, backend=backend, options=options or None)(torch.ones(2, 2), torch.ones(2, 2))
    return reports()[-1] if len(reports()) > known else None


class Probe(CustomGraphPass):
    """A user's pass: remembers what it saw."""

    def __init__(self, identity: Any = "probe") -> None:
        self.identity = identity
        self.operators: list[int] = []
        self.configured: list[Any] = []

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.operators.append(len(graph.nodes))
        self.configured.append(inductor_config.post_grad_custom_post_pass)

    def uuid(self) -> Any:
        return self.identity


def test_a_second_compile_hits_and_recalls_its_report() -> None:
    first, second = compile_once(), compile_once()
    assert first is not None
    assert second is not None
    assert (first.cache, first.origin) == ("miss", "run")
    assert (second.cache, second.origin) == ("hit", "stored")
    assert second.ledgers == first.ledgers


def test_a_users_pass_runs_beside_ours_and_is_part_of_the_key() -> None:
    probe = Probe()
    with inductor_config.patch({"post_grad_custom_post_pass": probe}):
        assert compile_once().cache == "miss"  # type: ignore[union-attr]
        assert compile_once().cache == "hit"  # type: ignore[union-attr]
    assert len(probe.operators) == 1
    assert len(reports()[0].ledgers[0]) == 1
    with inductor_config.patch({"post_grad_custom_post_pass": Probe("another")}):
        assert compile_once().cache == "miss"  # type: ignore[union-attr]


def test_a_users_pass_may_come_with_the_options() -> None:
    probe = Probe()
    compile_once(post_grad_custom_post_pass=probe)
    assert len(probe.operators) == 1
    assert len(reports()[0].ledgers[0]) == 1


def test_a_users_plain_function_runs_and_keeps_the_compile_out_of_the_cache() -> None:
    seen: list[int] = []
    with inductor_config.patch({"post_grad_custom_post_pass": lambda graph: seen.append(1)}):
        record = compile_once()
    assert record is not None
    assert (seen, record.cache, record.origin) == ([1], "bypass", "run")


one_pass = not hasattr(torch._inductor.custom_graph_pass, "get_custom_graph_passes")


@pytest.mark.skipif(one_pass, reason="before torch 2.13 inductor takes one pass of a user")
def test_several_passes_of_a_user_all_run() -> None:
    probes = [Probe("a"), Probe("b")]
    with inductor_config.patch({"post_grad_custom_post_pass": probes}):
        compile_once()
    assert [len(probe.operators) for probe in probes] == [1, 1]


def test_settings_are_as_before_after_forward_and_backward() -> None:
    def state() -> Any:
        return inductor_config.get_config_copy(), functorch_config.get_config_copy()

    before = state()
    x = torch.ones(2, 2, requires_grad=True)
    torch.compile(local, backend="counterpoint")(x, x).sum().backward()
    assert [record.role for record in reports()] == ["forward", "backward"]
    assert state() == before


def test_plain_inductor_compiles_in_another_thread_never_meet_our_pass() -> None:
    probe, found = Probe(), []

    def plain() -> None:
        with inductor_config.patch({"post_grad_custom_post_pass": probe, "fx_graph_cache": False}):
            compiled = torch.compile(lambda x, w: gathers(x, w) @ w)
            found.append(compiled(torch.ones(2, 2), torch.ones(2, 2)))

    thread = threading.Thread(target=plain)
    thread.start()
    compile_once()
    thread.join()
    assert len(found) == 1
    if torch_version() >= (2, 12):
        assert probe.configured == [probe]
    else:
        # What one thread sets holds in all of them, so our compile may have run its pass too.
        assert probe in probe.configured
    assert len(reports()) == 1


def test_what_ranks_can_do_is_part_of_the_key() -> None:
    plan = make_plan(read_request(None, None), [])
    tables = [table_of({"tp": found}) for found in (one_host(2), one_host(2, processors=8), two_hosts(4))]
    keys = {CounterpointPass(plan, (), capabilities=table).uuid() for table in (CapabilityTable(), *tables)}
    assert len(keys) == 4


def traced(function: Any) -> torch.fx.Graph:
    return torch.fx.symbolic_trace(function).graph


def test_what_protects_flights_stands_only_where_something_flies() -> None:
    name = dist.group.WORLD.group_name
    c10d = torch.ops._c10d_functional
    flies = traced(lambda x: c10d.wait_tensor.default(c10d.all_reduce.default(x, "sum", name)))
    starts = traced(lambda x: c10d.all_reduce.default(x, "sum", name))
    complete = traced(lambda x: torch.ops.counterpoint.shm_all_reduce.default(x, "sum", name))
    plan = make_plan(read_request({"passes": ""}, None), [])
    with inductor_config.patch(reorder_for_peak_memory=False):

        def allowed_behind(*graphs: torch.fx.Graph) -> bool:
            ours = CounterpointPass(plan, (), for_flights={"reorder_for_peak_memory": (False, True)})
            for graph in graphs:
                ours(graph)
            return inductor_config.reorder_for_peak_memory

        assert allowed_behind(complete)
        assert not allowed_behind(flies)
        assert not allowed_behind(starts)
        # One compile, and a graph that another one calls.
        assert not allowed_behind(flies, complete)


def test_a_graph_without_collectives_shares_its_cache_entry_with_plain_inductor() -> None:
    compile_once(local, backend="inductor")
    record = compile_once(local)
    assert record is not None
    assert (record.collectives, record.cache) == (0, "hit")


def test_a_graph_with_collectives_does_not() -> None:
    compile_once(backend="inductor")
    assert compile_once().cache == "miss"  # type: ignore[union-attr]


def test_settings_of_inductor_pass_through() -> None:
    record = compile_once(fx_graph_cache=False)
    assert record is not None
    assert (record.cache, record.in_force["inductor settings"]) == ("off", "fx_graph_cache=False")


def test_a_mode_passes_through() -> None:
    torch.compile(gathers, backend="counterpoint", mode="reduce-overhead")(torch.ones(2, 2), torch.ones(2, 2))
    assert "triton.cudagraphs=True" in reports()[0].in_force["inductor settings"]


def test_it_is_said_when_torch_does_not_run_our_passes() -> None:
    record = compile_once(use_post_grad_passes=False)
    assert record is not None
    assert "did not run our passes" in record.problems[0]
    assert record.origin == "none"


def test_the_autograd_cache_above_is_not_consulted() -> None:
    counters.clear()
    compile_once()
    compile_once()
    assert not any(name.startswith("autograd_cache") for name in counters["aot_autograd"])


def test_an_autograd_cache_that_is_forced_on_is_mentioned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entry = functorch_config._config["enable_autograd_cache"]
    monkeypatch.setattr(entry, "env_value_force", True)
    compile_once()
    assert "TORCHINDUCTOR_AUTOGRAD_CACHE" in caplog.text


def test_our_pass_survives_what_torch_does_to_settings() -> None:
    probe = Probe()
    compile_once(post_grad_custom_post_pass=probe)
    (ours,) = probe.configured
    assert isinstance(ours, CounterpointPass)
    assert copy.deepcopy(ours) is ours
    assert pickle.loads(pickle.dumps(ours)).uuid() == ours.uuid()
    with inductor_config.patch({"post_grad_custom_post_pass": ours}):
        assert inductor_config.save_config_portable()
        assert inductor_config.codegen_config()
