"""Every problem of a text is reported with its line, a caret and the next step; nothing in a text is run."""

from __future__ import annotations

import pytest

from counterpoint.errors import GraphFileError
from counterpoint.ir.text import parse_graph

GOOD = """\
graph
  %x: f32[2] = placeholder
  %y: f32[2] = aten.add.Tensor(%x, 1)
  return (%y,)
"""


def problem(text: str) -> GraphFileError:
    with pytest.raises(GraphFileError) as raised:
        parse_graph(text)
    assert raised.value.where is not None
    assert raised.value.next_step
    return raised.value


def test_an_error_shows_line_and_caret() -> None:
    error = problem(GOOD.replace("add.Tensor(%x, 1)", "add.Tensor(%x; 1)"))
    assert error.where == "graph text, line 3, column 34"
    lines = str(error).split("\n")
    assert lines[1] == "  3 |   %y: f32[2] = aten.add.Tensor(%x; 1)"
    assert lines[2].index("^") == lines[1].index(";")


def test_line_numbers_and_source_of_the_file_around_the_text() -> None:
    with pytest.raises(GraphFileError) as raised:
        parse_graph("graph\n  return %x\n", first_line=41, source="step.graph")
    assert raised.value.where == "step.graph, line 42, column 10"


def test_long_lines_are_cut_around_the_caret() -> None:
    many = ", ".join(f"%x{i}" for i in range(2000))
    error = problem(f"graph\n  return ({many})\n")
    assert max(map(len, error.what.split("\n"))) < 130


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("graph\n", ""), "expected `graph`"),
        (("graph\n", "graph inner\n"), "outermost graph comes first"),
        (("f32[2] = p", "f33[2] = p"), "expected a type"),
        (("f32[2] = p", "f32[2 = p"), "expected `,` or `]`, found `=`"),
        (("f32[2] = p", "f32[2]{1, 2} = p"), "1 strides for 1 dimensions"),
        (("f32[2] = p", "f32[2]@gpu:0 = p"), "a device that torch knows"),
        (("f32[2] = p", "f32[4611686018427387904, 4] = p"), "a tensor that can exist"),
        (("f32[2] = p", "float(1) = p"), "a plain float"),
        (("%x, 1", "%z, 1"), "node %z is used but not defined above"),
        (("%x, 1", "%y, 1"), "node %y is used but not defined above"),
        (("%x, 1", "x, 1"), "nodes begin with %"),
        (("%x, 1", "%x, other=1, 2"), "positional ones come first"),
        (("%x, 1", "%x, a=1, a=2"), "given twice"),
        (("%x, 1", "%x, class=1"), "not a name"),
        (("%x, 1", "%x, (1)"), "a tuple of one is written"),
        (("%x, 1", '%x, "a'), "a value or a known sign"),
        (("%x, 1", '%x, "\\q"'), "JSON escapes"),
        (("%x, 1", '%x, device("nope")'), "arguments that device takes"),
        (("%x, 1", "%x, device(3)"), "one quoted string"),
        (("%x, 1", "%x, {[1]: 2}"), "as key"),
        (("%x, 1", "%x, op(aten.add.Tenser)"), "operator aten.add.Tenser is not known"),
        (("%x, 1)", "%x, 1"), "expected"),
        (("%y:", "%x:"), "node %x is defined twice"),
        (("%x", "%sum"), "a name of Python's own"),
        (("%x", "%class"), "a name of Python's own"),
        (("aten.add.Tensor(%x, 1)", "get_attr w"), "neither an `attr w` above nor a `graph w` below"),
        (("aten.add.Tensor(%x, 1)", "get_attr __class__"), "an attribute path"),
        (("aten.add.Tensor(%x, 1)", "get_attr forward"), "the module's own"),
        (("placeholder", 'placeholder("a b")'), "placeholder"),
        (("aten.add.Tensor(%x, 1)", "operator.add(%x)"), "cannot be a Python function"),
        (("  return (%y,)\n", ""), "truncated"),
        (("  return (%y,)\n", "  return (%y,\n"), "expected a value"),
        (("  return (%y,)\n", "  return (%y,)\n  %z: f32[2] = placeholder\n"), "expected `graph`"),
        (("return (%y,)\n", "return (%y,)\n\ngraph g\n  return ()\n"), "no get_attr node uses graph g"),
        (("  %y", "  at nowhere in particular\n  %y"), "FILE:LINE"),
        (("%x, 1)", "%x, 1) with colour=3"), "one of counterpoint"),
        (("%x, 1)", '%x, 1) with unbacked_bindings={"u0": ["size", 0]}'), "bindings such as"),
        (("graph\n", "graph\n  attr w: f32[2] = [1.0]\n"), "2 values, not 1"),
        (("graph\n", 'graph\n  attr w: f32[2] = hex("00")\n'), "8 bytes of values"),
        (("graph\n", 'graph\n  attr w: f32[2] = hex("zz")\n'), "hexadecimal digits"),
        (("graph\n", "graph\n  attr w: f32[2]{99} = [1.0, 2.0]\n"), "without gaps"),
        (("graph\n", "graph\n  attr w: f32[2] = fake\n  attr w: f32[2] = fake\n"), "defined twice"),
        (("graph\n", "graph\n  attr training = 1\n"), "the module's own"),
    ],
)
def test_every_problem_names_what_was_expected(change: tuple[str, str], says: str) -> None:
    assert says in str(problem(GOOD.replace(*change)))


def test_unknown_operators_name_the_near_ones_or_the_overloads() -> None:
    assert "aten.add.Tensor" in str(problem(GOOD.replace("add.Tensor", "add.Tenser")))
    misspelt = str(problem(GOOD.replace("aten.add.Tensor", "_c10d_functional.all_reduc")))
    assert "_c10d_functional.all_reduce" in misspelt
    assert "torch 2." in str(problem(GOOD.replace("aten.add.Tensor", "elsewhere.op")))


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "builtins.eval",
        "builtins.exec",
        "builtins.__import__",
        "operator.attrgetter",
        "operator.methodcaller",
        "torch.load",
        "import_module.default",
        "load_library.default",
        "aten.__class__",
        "aten.add.__init__",
        "aten.add.op",
        "higher_order.__class__",
        "__class__.mro",
        "_ops.aten",
        "subprocess.run",
    ],
)
def test_nothing_but_operators_and_listed_functions_can_be_called(target: str) -> None:
    assert "is not known" in str(problem(GOOD.replace("aten.add.Tensor", target)))


def test_deep_nesting_and_long_numbers_are_errors() -> None:
    assert "nested" in str(problem(GOOD.replace("%x, 1", "[" * 5000)))
    assert "fewer digits" in str(problem(GOOD.replace("%x, 1", "%x, " + "1" * 10000)))


def test_every_truncation_is_an_error() -> None:
    for length in range(len(GOOD) - 1):
        if GOOD[:length].endswith("return (%y,)"):
            continue
        with pytest.raises(GraphFileError):
            parse_graph(GOOD[:length])
