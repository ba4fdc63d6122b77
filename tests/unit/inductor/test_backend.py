"""The backend in a pretended world of two ranks, without code generation: what is compiled, recorded and refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor import config as inductor_config
from torch.utils.checkpoint import checkpoint

from counterpoint.capture.file import load_graph
from counterpoint.capture.world import fake_world
from counterpoint.ir.groups import GroupTable
from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.passes.registry import register
from counterpoint.report.history import CompileRecord, clear_reports, reports

EAGER = {"codegen": "eager"}


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    clear_reports()
    with fake_world(2):
        yield


@register
@dataclass(frozen=True, kw_only=True)
class Faulty(Pass):
    """Spoils the graph, then fails."""

    name: ClassVar[str] = "test-faulty"

    def run(self, context: PassContext) -> None:
        """Spoil and fail."""
        for node in context.graph.nodes:
            node.meta["spoilt"] = True
        output = next(iter(reversed(context.graph.nodes)))
        output.args = ((),)
        raise KeyError("a fault of the test")


class Net(nn.Module):
    """One collective in each direction."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return funcol.all_reduce(self.inner(x).relu(), "sum", dist.group.WORLD).sum()


def compiled(model: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(model, backend="counterpoint", options=EAGER | options)


def summary() -> list[tuple[str, int, str]]:
    return [(record.role, record.collectives, str(*record.ledgers)) for record in reports()]


def test_forward_and_backward_each_leave_a_record() -> None:
    compiled(Net())(torch.ones(2, 4)).backward()
    assert summary() == [("forward", 1, "1 left-alone"), ("backward", 1, "1 left-alone")]


def test_what_was_asked_and_what_is_in_force_are_recorded() -> None:
    compiled(Net(), verify="off")(torch.ones(2, 4))
    record = reports()[0]
    assert record.requested == "codegen='eager' verify='off'"
    assert record.in_force["codegen"] == "eager"
    assert "verify=off from options=" in record.in_force["options"]
    assert "bitwise=false from default" in record.in_force["options"]
    assert record.cache == "off"
    assert record.compile_s >= record.passes_s > 0


def test_without_gradients_there_is_one_inference_graph() -> None:
    with torch.no_grad():
        compiled(Net())(torch.ones(2, 4))
    assert [record.role for record in reports()] == ["inference"]


def test_each_side_of_a_graph_break_is_a_graph() -> None:
    def broken(x: Tensor) -> Tensor:
        y = funcol.all_reduce(x, "sum", dist.group.WORLD) + 1
        torch._dynamo.graph_break()
        return funcol.all_reduce(y * 2, "sum", dist.group.WORLD) + 1

    compiled(broken)(torch.ones(4))
    assert summary() == [("inference", 1, "1 left-alone")] * 2
    assert len({record.graph for record in reports()}) == 2


def test_another_size_is_compiled_once_more_with_symbols_and_then_never_again() -> None:
    model = compiled(Net())
    for rows in (2, 3, 4, 5):
        model(torch.ones(rows, 4)).backward()
    assert [record.role for record in reports()] == ["forward", "backward"] * 2
    assert reports()[2].ledgers[0].entries[0].facts.nbytes is None


def test_dynamic_shapes_from_the_start_need_one_compile() -> None:
    model = torch.compile(Net(), backend="counterpoint", options=EAGER, dynamic=True)
    for rows in (2, 3, 4):
        model(torch.ones(rows, 4)).backward()
    assert [record.role for record in reports()] == ["forward", "backward"]


def test_activation_checkpointing_repeats_the_collective_in_the_backward() -> None:
    class Checkpointed(Net):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=False).sum()

    compiled(Checkpointed())(torch.ones(2, 4, requires_grad=True)).backward()
    assert [record.role for record in reports()] == ["forward", "backward"]
    assert all(len(record.ledgers[0]) == record.collectives for record in reports())


def test_several_modules_keep_their_own_options() -> None:
    compiled(Net(), verify="off")(torch.ones(2, 4))
    compiled(Net(), verify="full")(torch.ones(2, 4))
    assert [record.requested for record in reports()] == [
        "codegen='eager' verify='off'",
        "codegen='eager' verify='full'",
    ]


def test_a_graph_without_collectives_is_recorded_and_not_touched() -> None:
    compiled(lambda x: x.relu() + 1)(torch.ones(4))
    (record,) = reports()
    assert (record.collectives, record.reports, record.origin) == (0, (), "none")


def test_records_outlive_a_reset_of_dynamo() -> None:
    compiled(Net())(torch.ones(2, 4))
    torch._dynamo.reset()
    assert len(reports()) == 1


def test_a_nested_mesh_is_accounted_for_by_group() -> None:
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1, 2), mesh_dim_names=("outer", "inner"))

    def both(x: Tensor) -> Tensor:
        return funcol.all_reduce(funcol.all_reduce(x, "sum", (mesh, 0)), "sum", (mesh, 1)) + 1

    compiled(both)(torch.ones(4))
    facts = [entry.facts for entry in reports()[0].ledgers[0]]
    assert [fact.group_size for fact in facts] == [1, 2]
    assert len({fact.group for fact in facts}) == 2


def test_settings_of_torch_are_what_they_were_after_a_compile() -> None:
    from torch._functorch import config as functorch_config

    before = inductor_config.get_config_copy(), functorch_config.get_config_copy()
    compiled(Net())(torch.ones(2, 4)).backward()
    assert (inductor_config.get_config_copy(), functorch_config.get_config_copy()) == before


def test_compiling_in_several_threads_loses_no_record() -> None:
    def work() -> None:
        with torch.no_grad():
            compiled(Net())(torch.ones(2, 4))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(record.role == "inference" for record in reports())
    assert len(reports()) >= 1


# -- faults of ours ---------------------------------------------------------------------------------------------------


def failing(model: Any, **options: Any) -> tuple[Any, CompileRecord]:
    result = compiled(model, passes="test-faulty", **options)(torch.ones(2, 4))
    return result, reports()[0]


def test_a_failing_pass_leaves_the_graph_as_it_was_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = Net()
    result, record = failing(model)
    result.backward()
    torch.testing.assert_close(result, compiled(model)(torch.ones(2, 4)))
    assert record.ledgers[0].entries[0].verdict.code == "pass-failed"
    assert any("a fault of the test" in problem for problem in record.problems)
    assert "a fault of the test" in caplog.text


def test_a_failing_pass_leaves_its_input_graph_in_a_file_that_repeats_the_fault(tmp_path: Path) -> None:
    _, record = failing(Net())
    (file,) = (tmp_path / "cache" / "counterpoint" / "faults").iterdir()
    assert str(file) in record.problems[-1]
    captured = load_graph(file)
    again = run_pipeline(captured.gm, Pipeline.parse("test-faulty"), groups=GroupTable(captured.groups))
    assert "a fault of the test" in again.problems[0]


def test_a_failing_pass_fails_the_compile_when_that_is_wanted() -> None:
    with pytest.raises(BackendCompilerFailed, match="a fault of the test"):
        failing(Net(), on_error="raise")


def test_a_fault_outside_of_any_pass_is_contained_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        for node in args[0].graph.nodes:
            node.meta.clear()
        raise RuntimeError("the pipeline itself is broken")

    monkeypatch.setattr("counterpoint.inductor.guard.run_pipeline", broken)
    compiled(Net(), passes="verify-graph")(torch.ones(2, 4)).backward()
    assert [r.ledgers[0].entries[0].verdict.code for r in reports()] == ["pass-failed", "pass-failed"]
    assert "the pipeline itself is broken" in caplog.text


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verfy": "full"}, "did you mean 'verify'"),
        ({"verify": "loud"}, "OptionError.*paranoid"),
        ({"passes": "no-such-pass"}, "there is no pass 'no-such-pass'"),
        ({"passes": "verify-graph,,"}, "PassError"),
    ],
)
def test_mistaken_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendCompilerFailed, match=r"(?s)" + message):
        compiled(Net(), **options)(torch.ones(2, 4))


def test_an_unknown_group_is_named() -> None:
    def lost(x: Tensor) -> Tensor:
        started = torch.ops._c10d_functional.all_reduce(x, "sum", "nobody")
        return torch.ops._c10d_functional.wait_tensor(started)

    with pytest.raises(BackendCompilerFailed, match=r"(?s)GroupError.*'nobody'.*next step: create the group"):
        compiled(lost)(torch.ones(4))


def test_a_missing_process_group_is_named() -> None:
    def alone(x: Tensor) -> Tensor:
        started = torch.ops._c10d_functional.all_reduce(x, "sum", "0")
        return torch.ops._c10d_functional.wait_tensor(started)

    dist.destroy_process_group()
    with pytest.raises(BackendCompilerFailed, match=r"(?s)no process group is initialised.*init_process_group"):
        compiled(alone)(torch.ones(4))


def test_a_torch_that_is_too_old_is_refused_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoint._torch.versions.OLDEST_TORCH", (99, 1))
    with pytest.raises(BackendCompilerFailed, match=r"(?s)UnsupportedTorchError.*older than 99\.1"):
        compiled(Net())(torch.ones(2, 4))


def test_without_a_compiler_the_default_falls_back_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with inductor_config.patch({"cpp.cxx": ("/nowhere/c++",)}), caplog.at_level(logging.WARNING, "counterpoint"):
        torch.compile(Net(), backend="counterpoint")(torch.ones(2, 4)).backward()
    assert [record.in_force["codegen"] for record in reports()] == ["eager", "eager"]
    assert "no C++ compiler was found" in reports()[0].problems[0]
    assert "/nowhere/c++" in caplog.text


def test_without_a_compiler_an_explicit_wish_is_refused() -> None:
    with (
        inductor_config.patch({"cpp.cxx": ("/nowhere/c++",)}),
        pytest.raises(BackendCompilerFailed, match=r"(?s)CompileError.*codegen='eager'"),
    ):
        compiled(Net(), codegen="inductor")(torch.ones(2, 4))


def test_without_the_headers_of_python_the_default_falls_back_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    torch.compile(Net(), backend="counterpoint")(torch.ones(2, 4))
    assert reports()[0].in_force["codegen"] == "eager"
    assert f"no {tmp_path / 'Python.h'}" in reports()[0].problems[0]


def test_settings_of_inductor_that_do_nothing_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    compiled(Net(), max_autotune=True)(torch.ones(2, 4))
    assert "max_autotune" in reports()[0].problems[0]
    assert "max_autotune" in caplog.text


def test_the_backend_is_found_by_name_without_importing_us() -> None:
    assert "counterpoint" in torch.compiler.list_backends()
