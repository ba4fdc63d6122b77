"""Checks of one graph by itself: its order, its waits, its buffers in flight, its metadata, its signature."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node

from counterpoint.errors import VerifyError
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.verify import HINTS, RULES, Finding, Snapshot, check, verify

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
GROUPS = {"dp": range(4)}


def built(build: Callable[[GraphBuilder], Any]) -> GraphModule:
    builder = GraphBuilder(GROUPS)
    outputs = build(builder)
    return builder.finish(*(outputs if isinstance(outputs, (list, tuple)) else (outputs,)))


def codes(graph: GraphModule, **options: Any) -> list[str]:
    return [finding.code for finding in verify(graph, groups=GROUPS, **options)]


def node(graph: GraphModule, target: Any, number: int = 0) -> Node:
    return [n for n in graph.graph.nodes if n.target is target][number]


def chain(b: GraphBuilder) -> Node:
    x = b.input("x", (8, 4))
    return b.call(aten.add.Tensor, b.all_reduce(b.call(aten.relu.default, x), group="dp"), x)


# -- order ------------------------------------------------------------------------------------------------------------


def test_clean_graph_passes_every_rule() -> None:
    assert codes(built(chain)) == []


def test_operand_used_before_it_is_made() -> None:
    graph = built(chain)
    node(graph, aten.relu.default).append(node(graph, c10d.wait_tensor.default))
    (found,) = verify(graph)
    assert (found.code, found.node) == ("used-before-made", "wait_tensor_default")


def test_cycle_is_shown() -> None:
    graph = built(chain)
    node(graph, aten.relu.default).args = (node(graph, aten.add.Tensor),)
    found = {finding.code: finding for finding in verify(graph)}
    assert set(found) == {"used-before-made", "cycle"}
    for name in ("relu", "all_reduce", "wait_tensor", "add"):
        assert name in found["cycle"].message


def test_node_that_uses_itself_is_a_cycle() -> None:
    graph = built(chain)
    node(graph, aten.relu.default).args = (node(graph, aten.relu.default),)
    assert codes(graph) == ["used-before-made", "cycle"]


def test_operand_of_another_graph() -> None:
    graph, other = built(chain), built(chain)
    node(graph, aten.relu.default).args = (node(other, aten.relu.default),)
    assert codes(graph) == ["foreign-operand"]


def test_erased_operand() -> None:
    graph = built(chain)
    relu = node(graph, aten.relu.default)
    user = node(graph, c10d.all_reduce.default)
    user.args = (relu.args[0], *user.args[1:])
    graph.graph.erase_node(relu)
    user.args = (relu, *user.args[1:])
    assert codes(graph) == ["erased-operand"]


# -- waits ------------------------------------------------------------------------------------------------------------


def start(b: GraphBuilder, x: Node) -> Node:
    return b.call(c10d.all_reduce.default, x, "sum", "dp")


def pair(b: GraphBuilder) -> tuple[Node, Node, Node]:
    x, y = b.input("x", (8,)), b.input("y", (8,))
    started = b.call(c10d.all_reduce_coalesced.default, [x, y], "sum", "dp")
    return started, b.call(operator.getitem, started, 0), b.call(operator.getitem, started, 1)


def started_not_waited(b: GraphBuilder) -> Any:
    x = b.input("x", (8,))
    start(b, x)
    return x


def start_returned(b: GraphBuilder) -> Any:
    return start(b, b.input("x", (8,)))


def in_place_not_waited(b: GraphBuilder) -> Any:
    x = b.call(aten.relu.default, b.input("x", (8,)))
    b.call(c10d.all_reduce_.default, x, "sum", "dp")
    return []


def half_waited(b: GraphBuilder) -> Any:
    _, first, _ = pair(b)
    return b.wait(first)


def waited_twice(b: GraphBuilder) -> Any:
    started = start(b, b.input("x", (8,)))
    return b.wait(started), b.wait(started)


def wait_of_wait(b: GraphBuilder) -> Any:
    return b.wait(b.wait(start(b, b.input("x", (8,)))))


def waits_for_a_neighbour(b: GraphBuilder) -> Any:
    _, first, _ = pair(b)
    return b.wait(first), b.wait(first)


def waits_for_computation(b: GraphBuilder) -> Any:
    return b.wait(b.call(aten.relu.default, b.input("x", (8,))))


def waits_for_the_input(b: GraphBuilder) -> Any:
    x = b.call(aten.relu.default, b.input("x", (8,)))
    start(b, x)
    return b.wait(x)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (started_not_waited, ["never-waited"]),
        (start_returned, ["never-waited"]),
        (in_place_not_waited, ["never-waited"]),
        (half_waited, ["never-waited"]),
        (waited_twice, ["waited-twice"]),
        (wait_of_wait, ["waited-twice"]),
        (waits_for_a_neighbour, ["waited-twice", "never-waited"]),
        (waits_for_computation, ["wait-on-nothing"]),
        (waits_for_the_input, ["wait-on-nothing", "never-waited"]),
    ],
)
def test_wrong_waits_are_found(build: Callable[[GraphBuilder], Any], expected: list[str]) -> None:
    assert codes(built(build)) == expected


def waits_for_all(b: GraphBuilder) -> Any:
    _, first, second = pair(b)
    return b.wait(second), b.wait(first)


def waits_on_a_graph_input(b: GraphBuilder) -> Any:
    return b.wait(b.input("started_elsewhere", (8,)))


def waits_on_a_view(b: GraphBuilder) -> Any:
    return b.wait(b.call(aten.view.default, start(b, b.input("x", (8,))), [2, 4]))


def waits_on_the_buffer(b: GraphBuilder) -> Any:
    x = b.call(aten.relu.default, b.input("x", (8,)))
    b.call(c10d.all_reduce_.default, x, "sum", "dp")
    return b.wait(x)


def waits_on_a_finished_operator(b: GraphBuilder) -> Any:
    import torch.distributed._symmetric_memory

    x = b.input("x", (8,))
    return b.wait(b.call(torch.ops.symm_mem.one_shot_all_reduce.default, x, "sum", "dp"))


def reduces_twice_in_place(b: GraphBuilder) -> Any:
    x = b.call(aten.relu.default, b.input("x", (8,)))
    for _ in range(2):
        x = b.wait(b.call(c10d.all_reduce_.default, x, "sum", "dp"))
    return x


@pytest.mark.parametrize(
    "build",
    [
        waits_for_all,
        waits_on_a_graph_input,
        waits_on_a_view,
        waits_on_the_buffer,
        waits_on_a_finished_operator,
        reduces_twice_in_place,
    ],
)
def test_right_waits_pass(build: Callable[[GraphBuilder], Any]) -> None:
    assert codes(built(build)) == []


def test_what_the_reference_had_is_not_reported_again() -> None:
    reference = Snapshot.of(built(start_returned), GROUPS)
    assert verify(built(start_returned), reference=reference) == ()
    assert [f.code for f in reference.known] == ["never-waited"]


# -- buffers in flight ------------------------------------------------------------------------------------------------


def flying(touch: Callable[[GraphBuilder, Node, Node], Any], in_place: bool = False) -> Callable[[GraphBuilder], Any]:
    """A collective, something done between its start and its wait, and its wait."""

    def build(b: GraphBuilder) -> Any:
        x = b.call(aten.relu.default, b.input("x", (8, 4)))
        operator_ = c10d.all_reduce_.default if in_place else c10d.all_reduce.default
        started = b.call(operator_, x, "sum", "dp")
        done = touch(b, x, started)
        return b.wait(started), *([done] if isinstance(done, Node) else [])

    return build


def write(b: GraphBuilder, target: Node) -> Node:
    return b.call(aten.mul_.Tensor, target, 2)


def read(b: GraphBuilder, source: Node) -> Node:
    return b.call(aten.relu.default, source)


def row(b: GraphBuilder, x: Node, i: int = 0) -> Node:
    return b.call(aten.select.int, x, 0, i)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (flying(lambda b, x, s: write(b, x)), "written-in-flight"),
        (flying(lambda b, x, s: write(b, row(b, x))), "written-in-flight"),
        (flying(lambda b, x, s: read(b, s)), "read-in-flight"),
        (flying(lambda b, x, s: read(b, row(b, s))), "read-in-flight"),
        (flying(lambda b, x, s: write(b, s)), "written-in-flight"),
        (flying(lambda b, x, s: read(b, x), in_place=True), "read-in-flight"),
        (flying(lambda b, x, s: read(b, row(b, x)), in_place=True), "read-in-flight"),
        (flying(lambda b, x, s: write(b, x), in_place=True), "written-in-flight"),
        (flying(lambda b, x, s: b.all_reduce(x, group="dp"), in_place=True), "read-in-flight"),
    ],
)
def test_buffers_touched_in_flight_are_found(build: Callable[[GraphBuilder], Any], expected: str) -> None:
    assert set(codes(built(build))) == {expected}


@pytest.mark.parametrize(
    "build",
    [
        flying(lambda b, x, s: read(b, x)),
        flying(lambda b, x, s: b.all_reduce(x, group="dp")),
        flying(lambda b, x, s: row(b, x), in_place=True),
        flying(lambda b, x, s: None, in_place=True),
    ],
)
def test_harmless_accesses_in_flight_pass(build: Callable[[GraphBuilder], Any]) -> None:
    assert codes(built(build)) == []


def chunks(b: GraphBuilder, first: slice, second: slice) -> Any:
    """Two collectives in flight in parts of one buffer."""
    x = b.call(aten.relu.default, b.input("x", (8, 4)))
    parts = [b.call(aten.slice.Tensor, x, 0, s.start, s.stop) for s in (first, second)]
    started = [b.call(c10d.all_reduce_.default, part, "sum", "dp") for part in parts]
    return [b.wait(one) for one in started]


def test_parts_of_one_buffer_in_flight_must_not_overlap() -> None:
    assert codes(built(lambda b: chunks(b, slice(0, 4), slice(4, 8)))) == []
    assert "written-in-flight" in codes(built(lambda b: chunks(b, slice(0, 5), slice(4, 8))))


def gather_out(b: GraphBuilder, touch: Callable[[Node], Any]) -> Any:
    out = b.call(aten.empty.memory_format, [32])
    mine = b.call(aten.slice.Tensor, out, 0, 0, 8)
    b.call(aten.copy_.default, mine, b.input("x", (8,)))
    started = b.call(c10d.all_gather_into_tensor_out.default, mine, 4, "dp", out=out)
    touch(out)
    return b.wait(started)


def test_buffer_handed_to_a_collective_is_its_own_until_the_wait() -> None:
    assert codes(built(lambda b: gather_out(b, lambda out: None))) == []
    assert codes(built(lambda b: gather_out(b, lambda out: read(b, out)))) == ["read-in-flight"]


# -- metadata ---------------------------------------------------------------------------------------------------------


def spoiled(change: Callable[[torch.Tensor], torch.Tensor]) -> GraphModule:
    graph = built(chain)
    relu = node(graph, aten.relu.default)
    value = relu.meta["val"]
    with value.fake_mode:
        relu.meta["val"] = change(value)
    return graph


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.new_empty((4, 8)),
        lambda v: v.to(torch.bfloat16),
        lambda v: torch.empty_strided((8, 4), (1, 8)),
        lambda v: v.new_empty((8, 4), device="meta"),
    ],
)
def test_metadata_that_the_operator_disagrees_with(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = codes(spoiled(change))
    assert "wrong-metadata" in found
    assert codes(spoiled(change), level="structural") == []


def test_missing_metadata() -> None:
    graph = built(chain)
    del node(graph, aten.relu.default).meta["val"]
    assert codes(graph, level="structural") == ["no-metadata"]


def test_call_that_cannot_be_made() -> None:
    graph = built(lambda b: b.call(aten.mm.default, b.input("x", (2, 3)), b.input("y", (3, 4))))
    mm = node(graph, aten.mm.default)
    mm.args = (mm.args[0], mm.args[0])
    assert codes(graph) == ["cannot-compute"]


def test_checking_adds_no_guard_and_keeps_symbols() -> None:
    b = GraphBuilder(GROUPS)
    n, m = b.symbol("n", 8), b.symbol("m", 8)
    x, y = b.input("x", (n, 4)), b.input("y", (m, 4))
    # Running an addition of two symbolic sizes asks whether they are equal.
    total = b.graph.call_function(aten.add.Tensor, (x, y))
    total.meta["val"] = x.meta["val"]
    graph = b.finish(b.all_reduce(total, group="dp"))
    before = len(b.shape_env.guards), dict(b.shape_env.replacements), len(b.shape_env.deferred_runtime_asserts)
    verify(graph, reference=Snapshot.of(graph, GROUPS))
    after = len(b.shape_env.guards), dict(b.shape_env.replacements), len(b.shape_env.deferred_runtime_asserts)
    assert before == after


# -- signature --------------------------------------------------------------------------------------------------------


def two_outputs(b: GraphBuilder) -> list[Any]:
    x, y = b.input("x", (8, 4)), b.input("y", (4,))
    return [b.all_reduce(x, group="dp"), None, b.call(aten.add.Tensor, y, 1)]


def without_none(b: GraphBuilder) -> list[Any]:
    outputs = two_outputs(b)
    return [outputs[0], outputs[2]]


def none_moved(b: GraphBuilder) -> list[Any]:
    outputs = two_outputs(b)
    return [outputs[0], outputs[2], None]


def other_dtype(b: GraphBuilder) -> list[Any]:
    outputs = two_outputs(b)
    return [outputs[0], None, b.call(aten._to_copy.default, outputs[2], dtype=torch.float64)]


def other_shape(b: GraphBuilder) -> list[Any]:
    outputs = two_outputs(b)
    return [b.call(aten.view.default, outputs[0], [4, 8]), None, outputs[2]]


def more_inputs(b: GraphBuilder) -> list[Any]:
    outputs = two_outputs(b)
    b.input("z", (2,))
    return outputs


def returns_an_input(b: GraphBuilder) -> list[Any]:
    x, y = b.input("x", (8, 4)), b.input("y", (4,))
    return [b.all_reduce(x, group="dp"), None, y]


def writes_an_input(b: GraphBuilder) -> list[Any]:
    x, y = b.input("x", (8, 4)), b.input("y", (4,))
    total = b.call(aten.add.Tensor, y, 1)
    return [b.wait(b.call(c10d.all_reduce_.default, x, "sum", "dp")), None, total]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (two_outputs, set()),
        (without_none, {"outputs-changed"}),
        (none_moved, {"outputs-changed"}),
        (other_dtype, {"outputs-changed"}),
        (other_shape, {"outputs-changed"}),
        (more_inputs, {"inputs-changed"}),
        (returns_an_input, {"aliasing-changed"}),
        (writes_an_input, {"mutation-changed", "aliasing-changed"}),
    ],
)
def test_signature(build: Callable[[GraphBuilder], Any], expected: set[str]) -> None:
    reference = Snapshot.of(built(two_outputs), GROUPS, level="structural")
    assert set(codes(built(build), reference=reference, level="structural")) == expected


# -- findings and errors ----------------------------------------------------------------------------------------------


def test_error_shows_every_finding_with_its_neighbours() -> None:
    with pytest.raises(VerifyError) as caught:
        check(built(waited_twice), where="pass bucket")
    text = str(caught.value)
    assert "waited-twice at wait_tensor_default_1" in text
    assert "> wait_tensor_default_1 = call_function" in text
    assert "all_reduce_default = call_function" in text
    assert "pass bucket" in text


def test_every_finding_has_a_hint_and_stages_choose_rules() -> None:
    assert all(Finding(code, "x", "").hint for code in HINTS)
    assert len({rule.name for rule in RULES}) == len(RULES)

    def differentiable(b: GraphBuilder) -> Any:
        operator_ = torch.ops._c10d_functional_autograd.reduce_scatter_tensor.default
        return b.wait(b.call(operator_, b.input("x", (8,)), "sum", 4, "dp"))

    assert codes(built(differentiable), stage="captured") == []
    assert codes(built(differentiable), stage="lowered") == ["differentiable"]


def test_allowed_codes_are_left_out() -> None:
    assert codes(built(waited_twice), allow={"waited-twice"}) == []
