"""Symbolic shapes in the text: symbols, ranges, facts and expressions come back as torch knew them."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from counterpoint.errors import GraphFileError
from counterpoint.ir.text import parse_graph, print_graph


def value(gm: fx.GraphModule, name: str) -> torch.Tensor:
    found: torch.Tensor = next(n.meta["val"] for n in gm.graph.nodes if n.name == name)
    return found


def with_shape(declarations: str, shape: str) -> str:
    return f"graph\n{declarations}  %x: f32[{shape}] = placeholder\n  return %x\n"


def test_sizes_are_symbolic_with_hints_and_ranges() -> None:
    text = with_shape("  symbol s0 = 16\n  symbol s1 = 3 in [2, 64]\n", "2*s0, s1 + 1, 128")
    gm = parse_graph(text)
    assert print_graph(gm) == text
    rows, columns, plain = value(gm, "x").shape
    assert isinstance(rows, torch.SymInt)
    assert rows.node.hint == 32
    assert type(plain) is int
    assert statically_known_true(columns <= 65)
    assert not statically_known_true(columns <= 64)
    assert value(gm, "x").stride()[1] == 128


def test_symbols_are_shared_between_tensors_and_graphs() -> None:
    gm = parse_graph(
        "graph\n  symbol s0 = 16\n  %n: sym(s0) = placeholder\n  %x: f32[s0] = placeholder\n  %g = get_attr g\n"
        "  return %x\n\ngraph g\n  %y: f32[s0] = placeholder\n  return %y\n"
    )
    (inner,) = value(gm.g, "y").shape
    assert statically_known_true(value(gm, "x").shape[0] == inner)
    assert statically_known_true(value(gm, "n") == inner)


@pytest.mark.parametrize(
    "expression",
    [
        "s0 // 8",
        "8*(s0 // 8)",
        "(s0 + 7) // 8",
        "s0*s1 - 1",
        "2*s1 + s0**2",
        "Max(1, u0)",
        "Min(s0, s1 + 3) + 2",
        "Mod(s0, 8)",
        "ModularIndexing(s0, 2, 3)",
        "u0 - u1",
        "s1*(s0 + 1) - s0",
    ],
)
def test_expressions_keep_their_text(expression: str) -> None:
    text = (
        "graph\n  symbol s0 = 64\n  symbol s1 = 3\n  symbol u0 in [0, 100] size\n  symbol u1\n"
        "  %a: f32[s0, s1, u0] = placeholder\n"
        f"  %b: sym(u1) = placeholder\n  %x: sym({expression}) = placeholder\n  return %x\n"
    )
    once = print_graph(parse_graph(text))
    assert once == text
    assert print_graph(parse_graph(once)) == once


def test_unbacked_symbols_stay_without_hint_and_new_ones_get_other_names() -> None:
    gm = parse_graph(with_shape("  symbol u3 in [0, 100] size\n", "u3, 2"))
    (size, _) = value(gm, "x").shape
    assert isinstance(size, torch.SymInt)
    assert not size.node.has_hint()
    assert statically_known_true(size <= 100)
    fresh = size.node.shape_env.create_unbacked_symint()
    assert str(fresh) == "u4"


def test_symbolic_booleans_and_floats() -> None:
    text = (
        "graph\n  symbol s0 = 8\n  symbol zf0 = 0.5\n  %a: symbool(s0 >= 5) = placeholder\n"
        "  %b: symfloat(zf0) = placeholder\n  %c: f32[2] = aten.neg([sym(s0 + 1), symfloat(zf0)])\n  return %c\n"
    )
    assert print_graph(parse_graph(text)) == text


def test_assumptions_decide_later_questions() -> None:
    text = with_shape("  symbol s0 = 64\n  assume Mod(s0, 8) == 0\n", "s0")
    gm = parse_graph(text)
    (size,) = value(gm, "x").shape
    assert print_graph(gm) == text
    assert statically_known_true(size % 8 == 0)
    assert not statically_known_true(parse_graph(with_shape("  symbol s0 = 64\n", "s0")).graph and size % 16 == 0)


def test_strides_of_symbolic_shapes() -> None:
    declared = "  symbol s0 = 4\n  symbol s1 = 5\n"
    contiguous = with_shape(declared, "s0, s1")
    assert print_graph(parse_graph(contiguous.replace("s1] =", "s1]{s1, 1} ="))) == contiguous
    transposed = contiguous.replace("s1] =", "s1]{1, s0}+(2*s0) =")
    gm = parse_graph(transposed)
    assert print_graph(gm) == transposed
    assert value(gm, "x").stride()[1] == value(gm, "x").shape[0]


def test_signed_symbols_keep_their_sign() -> None:
    text = "graph\n  symbol s0 = 4 in [-inf, inf]\n  symbol s1 = 4 in [5, 9] signed\n"
    text = text.replace("= 4 in [5", "= 6 in [5") + "  %a: sym(s0 + s1) = placeholder\n  return %a\n"
    gm = parse_graph(text)
    assert print_graph(gm) == text
    assert not statically_known_true(gm.graph.find_nodes(op="placeholder")[0].meta["val"] > 0)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("  symbol n = 4\n", "expected s, u, zf or zuf"),
        ("  symbol s0\n", "= value"),
        ("  symbol u0 = 4\n", "no value"),
        ("  symbol s0 = 1\n", "outside"),
        ("  symbol s0 = 4 in [9, 3]\n", "first bound"),
        ("  symbol s0 = 4\n  symbol s0 = 4\n", "declared twice"),
        ("  symbol s0 = 4\n  assume s0 < 0\n", "can hold"),
    ],
)
def test_wrong_declarations_are_refused(line: str, says: str) -> None:
    with pytest.raises(GraphFileError, match=says):
        parse_graph(with_shape(line, "2"))


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ("s9", "declared symbol"),
        ("s0**99999999", "exponent"),
        ("2**9**9", "`,` or `]`"),
        ("s0 // 0", "other than zero"),
        ("s0 > 2", "whole number"),
        ("-1", "size from 0"),
        ("9223372036854775808", "size from 0"),
        ("__import__", "declared symbol"),
        ("s0*(s0 > 2)", "makes sense"),
        ("Mod(s0)", "arguments that Mod takes"),
    ],
)
def test_wrong_expressions_are_refused(shape: str, says: str) -> None:
    with pytest.raises(GraphFileError, match=says):
        parse_graph(with_shape("  symbol s0 = 4\n", shape))
