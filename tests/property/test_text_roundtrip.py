"""Any graph that can be written is read back as it was: values, types, shapes, expressions, folding."""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx

from counterpoint import _torch
from counterpoint.errors import GraphFileError
from counterpoint.ir.collective import get_all_comm_blocks
from counterpoint.ir.evaluate import evaluate
from counterpoint.ir.text import constants_of, parse_graph, print_graph
from counterpoint.ir.text.expression import expression_text, read_expression
from counterpoint.ir.text.lex import Cursor
from tests.support.strategies import Case, distributed_graphs

usual = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(max_size=20),
    st.sampled_from([torch.float32, torch.bool, torch.device("cuda:1"), torch.strided, torch.preserve_format, ...]),
)
arguments = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    max_leaves=12,
)


def shown(value: Any) -> str:
    """A value with the types and signs inside it, for comparison."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{k!r}:{shown(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"{'list' if isinstance(value, list) else 'tuple'}[{','.join(map(shown, value))}]"
    return f"{type(value).__name__} {value!r}"


@usual
@given(st.lists(arguments, max_size=4), st.dictionaries(st.sampled_from(["dim", "a", "group_name"]), arguments))
def test_arguments(args: list[Any], kwargs: dict[str, Any]) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.ops.aten.neg.default, (x,))
    graph.output((node, node))
    gm = fx.GraphModule({}, graph)
    node.args, node.kwargs = (x, *args), kwargs
    text = print_graph(gm)
    again = parse_graph(text)
    assert print_graph(again) == text
    read = next(n for n in again.graph.nodes if n.op == "call_function")
    assert shown(read.args[1:]) == shown(tuple(args))
    assert shown(read.kwargs) == shown(kwargs)


shapes = st.lists(st.integers(0, 5), max_size=4)


@usual
@given(
    shapes,
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]),
    st.randoms(use_true_random=False),
    st.integers(0, 9),
)
def test_values_keep_shape_strides_and_offset(shape: list[int], dtype: torch.dtype, random: Any, offset: int) -> None:
    strides = [random.choice([0, 1, 3, 60]) for _ in shape] if random.random() < 0.5 else None
    tensor = torch.empty(shape, dtype=dtype, device="meta")
    if strides is not None:
        tensor = torch.empty(2000, dtype=dtype, device="meta").as_strided(shape, strides, offset)
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = tensor
    graph.output(x)
    text = print_graph(fx.GraphModule({}, graph)).replace("@meta", "")
    again = parse_graph(text)
    assert print_graph(again) == text
    read = next(iter(again.graph.nodes)).meta["val"]
    assert (read.shape, read.stride(), read.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert read.storage_offset() == tensor.storage_offset()


@usual
@given(shapes, st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.float64]), st.data())
def test_constants_keep_their_bits(shape: list[int], dtype: torch.dtype, data: Any) -> None:
    size = torch.empty((), dtype=dtype).element_size()
    count = math.prod(shape)
    raw = data.draw(st.binary(min_size=count * size, max_size=count * size)) if count <= 16 else bytes(count * size)
    bits = torch.tensor(list(raw), dtype=torch.uint8)
    root = torch.nn.Module()
    root.register_buffer("c", bits.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype))
    graph = fx.Graph()
    graph.output(graph.get_attr("c"))
    gm = fx.GraphModule(root, graph)
    again = parse_graph(print_graph(gm), constants=constants_of(gm))
    assert again.c.shape == gm.c.shape
    assert torch.equal(again.c.reshape(-1).view(torch.uint8), gm.c.reshape(-1).view(torch.uint8))
    assert print_graph(again) == print_graph(gm)


s0, s1 = sympy.symbols("s0 s1", integer=True, positive=True)
u0 = sympy.Symbol("u0", integer=True)
functions = _torch.symbolic_functions()
expressions = st.recursive(
    st.one_of(st.sampled_from([s0, s1, u0]), st.integers(-9, 64).map(sympy.Integer)),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, st.integers(2, 64)).map(lambda p: functions["FloorDiv"](p[0], sympy.Integer(p[1]))),
        st.tuples(inner, inner).map(lambda p: functions["Max"](*p)),
        st.tuples(inner, inner).map(lambda p: functions["Min"](*p)),
        st.tuples(inner, inner).map(lambda p: functions["PythonMod"](p[0], sympy.Integer(7))),
    ),
    max_leaves=8,
)


@usual
@given(expressions)
def test_expressions(expression: Any) -> None:
    text = expression_text(expression)
    symbols = {symbol.name: symbol for symbol in (s0, s1, u0)}
    cursor = Cursor(text)
    read = read_expression(cursor, lambda: symbols[cursor.take()])
    assert cursor.kind == "line"
    assert expression_text(read) == text
    for values in ({s0: 12, s1: 5, u0: 0}, {s0: 64, s1: 2, u0: 33}):
        assert read.subs(values) == expression.subs(values)


@usual
@given(st.lists(arguments, min_size=1, max_size=12))
def test_folded_lines_are_short_and_read_the_same(values: list[Any]) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(x)
    gm = fx.GraphModule({}, graph)
    gm.graph.output_node().args = ((x, values, tuple(values)),)
    text = print_graph(gm)
    assert print_graph(parse_graph(text)) == text
    joined = " ".join(line.strip() for line in text.split("\n")[2:])
    assert print_graph(parse_graph("graph\n  %x: ? = placeholder\n" + joined + "\n")) == text


@usual
@given(distributed_graphs())
def test_distributed_graphs_compute_the_same(case: Case) -> None:
    text = print_graph(case.gm)
    again = parse_graph(text)
    assert print_graph(again) == text
    assert list(map(str, get_all_comm_blocks(again.graph))) == list(map(str, get_all_comm_blocks(case.gm.graph)))
    before, after = (evaluate(gm, case.inputs, case.groups) for gm in (case.gm, again))
    for ours, theirs in zip(before, after, strict=True):
        assert all(torch.equal(a.float(), b.float()) for a, b in zip(ours, theirs, strict=True))


CHANGED = """\
graph
  symbol s0 = 4
  attr c: f32[2] = [1.0, 2.0]
  %x: f32[s0, 2]{2, 1}+4 = placeholder
  at a.py:1 in f | m K | c
  %y: f32[s0] = _c10d_functional.all_reduce(%x, "sum", group("0")) with counterpoint={"a": (1,)}
  %c: ? = get_attr c
  %z: (sym(s0 + 1), None) = aten.neg(%y, [1, -2.5], k=slice(1, None, 2))
  return (%x,)
"""


def test_the_text_that_is_changed_below_is_good() -> None:
    assert len(parse_graph(CHANGED).graph.nodes) == 5


@settings(usual, max_examples=200)
@given(st.integers(0, 400), st.characters(codec="utf-8"))
def test_a_changed_character_never_escapes_as_another_error(place: int, sign: str) -> None:
    text = CHANGED
    place %= len(text)
    try:
        gm = parse_graph(text[:place] + sign + text[place + 1 :])
    except GraphFileError:
        return
    gm.graph.lint()
    print_graph(gm)
