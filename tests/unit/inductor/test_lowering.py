"""Our lowerings: in force for our graphs only, gone afterwards, and nothing that is in flight is overwritten.

The functions are made of library calls only, so that no kernel has to be compiled.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch._inductor import config as inductor_config
from torch._inductor import ir, lowering
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V

from counterpoint._torch import torch_version
from counterpoint.capture.world import fake_world
from counterpoint.errors import CompileError
from counterpoint.inductor import comm_lowering as door
from counterpoint.inductor.lowering import forms, scope, state, table
from counterpoint.inductor.lowering.buffers import in_comm_buffer, refuse_comm_buffer
from counterpoint.ir import ops

C10D = torch.ops._c10d_functional
SYMM = ir.CommBufferType.SYMM_MEM


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    with fake_world(2), inductor_config.patch(fx_graph_cache=False):
        yield


def group() -> str:
    return str(dist.group.WORLD.group_name)  # type: ignore[union-attr]


def code_of(function: Callable[..., Any], *inputs: Tensor, backend: str = "counterpoint", passes: str = "") -> str:
    """The calls of the generated code, a line each."""
    torch.compiler.reset()
    options = {"passes": passes} if backend == "counterpoint" else None
    _, (code,) = run_and_get_code(torch.compile(function, backend=backend, options=options), *inputs)
    return str(code[code.find("def call(") : code.find("return (")])


def square() -> Tensor:
    return torch.ones(8, 8)


def in_place_sum(x: Tensor, w: Tensor) -> Tensor:
    return C10D.wait_tensor(C10D.all_reduce(x @ w, "sum", group())) @ w


# -- what is generated ------------------------------------------------------------------------------------------------


def test_a_dead_input_is_reduced_in_place_without_a_copy() -> None:
    code = code_of(in_place_sum, square(), square())
    assert "all_reduce_.default(buf0" in code
    assert "cpp_fused" not in code


@pytest.mark.skipif(torch_version() < (2, 12), reason="torch traces no collective into a given buffer before 2.12")
def test_what_is_sent_is_not_overwritten_before_the_wait() -> None:
    def gathers_into(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        sent = x @ w
        started = C10D.all_gather_into_tensor_out(sent, 2, group(), out=torch.empty(16, 8))
        beside = (w @ x) @ w
        return C10D.wait_tensor(started), beside

    with inductor_config.patch(reorder_for_locality=False, reorder_for_peak_memory=False):
        code = code_of(gathers_into, square(), square())
    start, wait = code.index("all_gather_into_tensor_out"), code.index("wait_tensor.default")
    sent = re.search(r"all_gather_into_tensor_out\.default\((\w+)", code)
    assert sent is not None
    assert "extern_kernels.mm" in code[start:wait]
    assert f"del {sent[1]}" not in code[start:wait]


def test_a_scheduled_wait_stays_behind_the_work_that_hides_it() -> None:
    def scatters(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        started = C10D.reduce_scatter_tensor(x @ w, "sum", 2, group())
        beside = (w @ x) @ w
        return beside, C10D.wait_tensor(started)

    ours = code_of(scatters, square(), square(), passes="schedule-waits")
    between = ours[ours.index("reduce_scatter_tensor.default(") : ours.index("wait_tensor")]
    assert between.count("extern_kernels.mm") == 2


def test_tensors_that_lie_otherwise_are_made_contiguous() -> None:
    def sums(x: Tensor, w: Tensor) -> list[Tensor]:
        started = C10D.all_reduce_coalesced([(x @ w)[:, ::2], w @ x], "sum", group())
        return [C10D.wait_tensor(each) for each in started]

    code = code_of(sums, square(), square())
    sent = re.search(r"all_reduce_coalesced_\.default\(\[(.*?)\], 'sum'", code)
    assert sent is not None
    assert "(8, 2)" not in sent[1]


@pytest.mark.messages
@pytest.mark.parametrize("dims", [(8, 8), (0, 8)])
def test_point_to_point_operations_are_generated(dims: tuple[int, int]) -> None:
    def exchanges(x: Tensor, w: Tensor) -> Tensor:
        results = C10D.batch_p2p_ops(["isend", "irecv"], [1, 1], [0, 0], [x @ w, torch.empty(dims)], group())
        return [C10D.wait_tensor(result) for result in results][1] @ w

    code = code_of(exchanges, torch.ones(dims), square())
    assert code.count("batch_p2p_ops") >= 1
    assert code.count("wait_tensor.default") == 2


def test_arguments_behind_a_missing_one_go_by_keyword() -> None:
    spec = ops.TABLE["_c10d_functional::wait_tensor"]
    call = forms.Call.of(spec, torch.ops.aten.clamp.default, (1,), {"max": 3})
    assert call.arguments() == ((1,), {"max": 3})


def test_every_operator_of_the_library_has_a_lowering() -> None:
    rows = [row for row in ops.TABLE.values() if row.name.startswith("_c10d_functional::")]
    here = {operator.name().split(".")[0] for operator in table.comm_lowerings()}
    missing = {row.name for row in rows} - here
    assert all(not hasattr(C10D, name.split("::")[1]) for name in missing)
    assert "_dtensor::shard_dim_alltoall" in here


# -- whose graph it is ------------------------------------------------------------------------------------------------


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that our lowerings lower from now on."""
    seen: list[str] = []
    original = forms.Call.of

    def spy(spec: Any, *rest: Any) -> Any:
        seen.append(spec.name)
        return original(spec, *rest)

    monkeypatch.setattr(forms.Call, "of", staticmethod(spy))
    return seen


def test_inductors_table_is_as_before_after_a_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = dict(lowering.lowerings), calls_of(monkeypatch)
    code_of(in_place_sum, square(), square())
    assert seen
    assert dict(lowering.lowerings) == before


def test_the_table_is_as_before_after_a_failure() -> None:
    before = dict(lowering.lowerings)
    during = {}

    def fail() -> None:
        with scope.SCOPE.active():
            during.update(lowering.lowerings)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert during != before
    assert dict(lowering.lowerings) == before


def test_a_plain_compile_meanwhile_gets_inductors_lowerings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = calls_of(monkeypatch)
    with scope.SCOPE.active():
        code_of(in_place_sum, square(), square(), backend="inductor")
    assert seen == []


def test_threads_may_compile_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(lowering.lowerings)
    meet = threading.Barrier(2)

    def compile_with(backend: str) -> Tensor:
        x = square()
        compiled = torch.compile(lambda x: in_place_sum(x, x), backend=backend)
        meet.wait()
        result: Tensor = compiled(x)
        return result

    torch.compiler.reset()
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(compile_with, ("counterpoint", "inductor")))
    assert torch.equal(results[0], results[1])
    assert dict(lowering.lowerings) == before


def test_somebody_elses_later_registration_is_kept() -> None:
    key = C10D.all_reduce.default
    mine: dict[Any, Any] = {key: "theirs"}
    held = scope.LoweringScope(mine)
    with held.active(), held.active():
        mine[key] = "later"
    assert mine == {key: "later"}


# -- the door ---------------------------------------------------------------------------------------------------------


def lowered_graph(*inputs: Tensor) -> GraphLowering:
    """An empty graph that is being lowered."""
    graph = fx.Graph()
    graph.output(())
    gm = fx.GraphModule(torch.nn.Module(), graph)
    return GraphLowering(gm, example_inputs=list(inputs))


def test_skipped_waits_do_not_leak_into_a_graph_with_equal_names() -> None:
    class Named:
        def get_name(self) -> str:
            return "buf0"

    first, second, result = lowered_graph(), lowered_graph(), Named()
    with V.set_graph_handler(first):
        door.mark_as_skip_wait(result)  # type: ignore[arg-type]
        assert door.should_skip_wait(result)  # type: ignore[arg-type]
    with V.set_graph_handler(second):
        assert not door.should_skip_wait(result)  # type: ignore[arg-type]


def tensor_box(size: Any, *, computed: bool) -> ir.TensorBox:
    device = torch.device("cpu")
    if computed:
        return ir.Pointwise.create(
            device=device, dtype=torch.float32, inner_fn=lambda index: V.ops.constant(1.0, torch.float32), ranges=size
        )
    layout = ir.FixedLayout(device, torch.float32, size, ir.FlexibleLayout.contiguous_strides(size))
    return ir.TensorBox.create(ir.InputBuffer(name="arg0", layout=layout))


def test_what_inductor_allocates_becomes_a_communication_buffer() -> None:
    with V.set_graph_handler(lowered_graph()):
        box = tensor_box([4, 4], computed=True)
        assert door.can_realize_as_comm_buffer(box, SYMM)
        door.realize_as_comm_buffer(box, SYMM, "0")
        assert isinstance(box.data.data.get_output_spec(), ir.CommBufferLayout)


def test_a_graph_input_is_refused_in_words_and_copied_once() -> None:
    with V.set_graph_handler(lowered_graph()):
        box = tensor_box([4, 4], computed=False)
        assert not door.can_realize_as_comm_buffer(box, SYMM)
        with pytest.raises(CompileError, match="input of the graph"):
            door.realize_as_comm_buffer(box, SYMM, "0")
        copy = in_comm_buffer(box, SYMM, "0")
        assert copy is not box
        assert refuse_comm_buffer(copy) is None


def test_a_tensor_in_another_ones_memory_is_refused_and_copied_once() -> None:
    with V.set_graph_handler(lowered_graph()):
        whole, part = tensor_box([4, 4], computed=True), tensor_box([4, 4], computed=True)
        whole.realize()
        part.realize()
        fixed = ir.FixedLayout(torch.device("cpu"), torch.float32, [4, 4], [4, 1])
        part.data.data.layout = ir.NonOwningLayout(ir.ReinterpretView(data=whole.data, layout=fixed))
        assert not door.can_realize_as_comm_buffer(part, SYMM)
        with pytest.raises(CompileError, match="lies in another tensor's memory"):
            door.realize_as_comm_buffer(part, SYMM, "0")
        copy = in_comm_buffer(part, SYMM, "0")
        assert copy is not part
        assert refuse_comm_buffer(copy) is None


def test_a_tensor_of_unknown_size_is_refused_and_stays_where_it_is() -> None:
    graph = lowered_graph()
    with V.set_graph_handler(graph):
        unknown = graph.sizevars.shape_env.create_unbacked_symint()
        box = tensor_box([unknown.node.expr, 4], computed=True)
        assert not door.can_realize_as_comm_buffer(box, SYMM)
        assert in_comm_buffer(box, SYMM, "0") is box
        with pytest.raises(CompileError, match="not known while compiling"):
            door.realize_as_comm_buffer(box, SYMM, "0")


def test_the_door_registers_for_every_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, before = calls_of(monkeypatch), dict(lowering.lowerings)
    try:
        door.register_comm_lowerings()
        door.register_symm_mem_lowerings()
        code_of(in_place_sum, square(), square(), backend="inductor")
    finally:
        lowering.lowerings.clear()
        lowering.lowerings.update(before)
    assert "_c10d_functional::all_reduce_" in seen


def test_state_lives_on_the_graph() -> None:
    graph = lowered_graph()
    assert state.state_of(graph) is state.state_of(graph)


@pytest.mark.parametrize(("operator", "ours"), [(C10D.all_reduce.default, True), (torch.ops.aten.sum.default, False)])
def test_only_graphs_that_communicate_are_claimed(operator: Any, ours: bool) -> None:
    graph = lowered_graph()
    for node in graph.module.graph.find_nodes(op="output"):
        with graph.module.graph.inserting_before(node):
            graph.module.graph.call_function(operator, ())
    state.claim(graph.module)
    assert state.is_ours(graph) is ours
