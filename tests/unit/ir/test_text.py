"""The text form of a graph: what is written is what is read, and a person can write it."""

from __future__ import annotations

import math
import operator
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import fx

from counterpoint.capture import example_models
from counterpoint.errors import GraphError, GraphFileError
from counterpoint.ir.text import GroupName, Opaque, constants_of, parse_graph, print_graph

HAND_WRITTEN = """\
graph
  %x: f32[64, 128] = placeholder
  %w: f32[128, 64] = placeholder
  %gather: f32[128, 128] = _c10d_functional.all_gather_into_tensor(%x, 2, "0")
  %wait: f32[128, 128] = _c10d_functional.wait_tensor(%gather)
  %t: f32[64, 128]{1, 64} = aten.t(%w)
  %mm: f32[128, 64] = aten.mm(%wait, %w)
  return (%mm, %t, None)
"""


def round_trip(text: str) -> fx.GraphModule:
    """The graph of a text, after checking that it prints as it was written."""
    gm = parse_graph(text)
    assert print_graph(gm) == text
    return gm


def node(gm: fx.GraphModule, name: str) -> fx.Node:
    return next(n for n in gm.graph.nodes if n.name == name)


def test_hand_written_text_becomes_a_graph_with_metadata() -> None:
    gm = round_trip(HAND_WRITTEN)
    gm.graph.lint()
    wait, t = node(gm, "wait"), node(gm, "t")
    assert node(gm, "gather").target is torch.ops._c10d_functional.all_gather_into_tensor.default
    assert node(gm, "gather").args == (node(gm, "x"), 2, "0")
    assert wait.meta["val"].shape == (128, 128)
    assert wait.meta["val"].dtype is torch.float32
    assert t.meta["val"].stride() == (1, 64)
    assert t.meta["tensor_meta"].stride == (1, 64)
    assert gm.graph.output_node().args == ((node(gm, "mm"), t, None),)


def test_all_values_share_one_reachable_fake_mode_and_no_storage() -> None:
    values = [n.meta["val"] for n in parse_graph(HAND_WRITTEN).graph.nodes if n.op != "output"]
    assert len({id(v.fake_mode) for v in values}) == 1
    assert len({v.untyped_storage()._cdata for v in values}) == len(values)


def test_parsed_graph_computes_what_it_says() -> None:
    gm = parse_graph(
        "graph\n  %x: f32[3] = placeholder\n  %y: f32[3] = aten.mul.Tensor(%x, 2.0)\n"
        "  %z: f32[3] = aten.add.Tensor(%y, %x, alpha=3)\n  return %z\n"
    )
    assert torch.equal(gm(torch.arange(3.0)), torch.arange(3.0) * 5)


@pytest.mark.parametrize(
    "text",
    [
        "f32[]",
        "f32[0, 4]",
        "bf16[2, 3]{1, 2}+7",
        "b8[4]@cuda:0",
        "f8e4m3fn[16, 16]@cuda:1 requires_grad",
        "c64[2]",
        "u16[2]",
        "f32[3, 4]{0, 1}",
        "f32[2, 2] sparse_coo",
        "(f32[2], None, (i64[],))",
        "[f32[2], f32[3]]",
        "int(5)",
        "float(-0.0)",
        "float(nan)",
        "float(-inf)",
        "bool(True)",
        'str("a \\"b\\"")',
        'object("torch.distributed.device_mesh.DeviceMesh")',
        'group("0")',
        "()",
        "[]",
        "?",
        "None",
    ],
)
def test_every_kind_of_value_keeps_its_text(text: str) -> None:
    round_trip(f"graph\n  %x: {text} = placeholder\n  return %x\n")


def test_fake_tensors_of_absent_devices_have_strides_offsets_and_gradients() -> None:
    gm = parse_graph("graph\n  %x: f32[2, 3]{1, 2}+7@cuda:1 requires_grad = placeholder\n  return %x\n")
    val = node(gm, "x").meta["val"]
    assert (val.device, val.stride(), val.storage_offset()) == (torch.device("cuda:1"), (1, 2), 7)
    assert val.requires_grad


def test_a_missing_value_stays_missing_and_none_stays_none() -> None:
    gm = parse_graph("graph\n  %x: ? = placeholder\n  %y: None = placeholder\n  return ()\n")
    assert "val" not in node(gm, "x").meta
    assert node(gm, "y").meta["val"] is None


ARGUMENTS: list[tuple[str, Any]] = [
    ("None", None),
    ("True", True),
    ("1", 1),
    ("-7", -7),
    ("1.0", 1.0),
    ("-0.0", -0.0),
    ("1e-30", 1e-30),
    ("0.1", 0.1),
    ("inf", math.inf),
    ("-inf", -math.inf),
    ("complex(1.0, -2.0)", 1 - 2j),
    ('"a\\n\\"%x\\u00e9"', 'a\n"%xé'),
    ("[1, 2]", [1, 2]),
    ("(1,)", (1,)),
    ("()", ()),
    ("[(1, [2.0]), []]", [(1, [2.0]), []]),
    ('{"a": 1, 2: [3]}', {"a": 1, 2: [3]}),
    ("slice(1, None, 2)", slice(1, None, 2)),
    ("...", ...),
    ("f32", torch.float32),
    ("b8", torch.bool),
    ("f8e4m3fn", torch.float8_e4m3fn),
    ('device("cuda:0")', torch.device("cuda:0")),
    ("torch.strided", torch.strided),
    ("torch.channels_last", torch.channels_last),
    ("op(aten.add.Tensor)", torch.ops.aten.add.Tensor),
    ("op(higher_order.cond)", torch.ops.higher_order.cond),
]


@pytest.mark.parametrize(("text", "value"), ARGUMENTS, ids=[text for text, _ in ARGUMENTS])
def test_arguments_keep_their_value_and_type(text: str, value: Any) -> None:
    gm = round_trip(f"graph\n  %x: ? = placeholder\n  %y: ? = aten.neg(%x, {text}, k={text})\n  return %y\n")
    (_, positional), named = node(gm, "y").args, node(gm, "y").kwargs["k"]
    assert positional == value
    assert named == value
    kinds = {list: fx.immutable_collections.immutable_list, dict: fx.immutable_collections.immutable_dict}
    assert type(positional) is kinds.get(type(value), type(value))
    assert math.copysign(1, positional) == math.copysign(1, value) if value == 0 and value is not False else True


def test_nan_is_an_argument() -> None:
    gm = round_trip("graph\n  %x: ? = placeholder\n  %y: ? = aten.neg(%x, nan)\n  return %y\n")
    assert math.isnan(node(gm, "y").args[1])


def test_keyword_and_positional_arguments_are_told_apart() -> None:
    gm = round_trip(
        "graph\n  %x: f32[2] = placeholder\n"
        '  %a: f32[2] = _c10d_functional.all_reduce(%x, "sum", "0")\n'
        '  %b: f32[2] = _c10d_functional.all_reduce(%x, group_name="0", reduce_op="sum")\n  return (%a, %b)\n'
    )
    assert node(gm, "a").kwargs == {}
    assert list(node(gm, "b").kwargs) == ["group_name", "reduce_op"]


def test_functions_getitem_and_nodes_in_every_position() -> None:
    gm = round_trip(
        "graph\n  %x: ? = placeholder\n  %i: ? = placeholder\n  %a: ? = %x[0]\n"
        "  %b: ? = %x[(slice(%i, None, None), ...)]\n"
        "  %c: ? = operator.add(%i, 1)\n  %d: ? = torch.sym_max(%c, %i)\n  %e: ? = math.ceil(%d)\n"
        '  %f: ? = aten.neg([%a, (%b,)], k={"z": %c})\n  return %f\n'
    )
    assert node(gm, "a").target is operator.getitem
    assert node(gm, "d").target is torch.sym_max
    assert node(gm, "f").all_input_nodes == [node(gm, n) for n in "abc"]


def test_placeholders_keep_target_and_default() -> None:
    gm = round_trip(
        'graph\n  %x: ? = placeholder("other", default=None)\n  %y: ? = placeholder(default=3)\n  return %x\n'
    )
    assert node(gm, "x").target == "other"
    assert node(gm, "y").args == (3,)


def test_a_group_object_is_written_by_name_and_reads_as_a_string() -> None:
    gm = round_trip(
        "graph\n  %x: f32[2] = placeholder\n"
        '  %a: f32[2] = _c10d_functional.all_reduce(%x, "sum", group("7"))\n  return %a\n'
    )
    name = node(gm, "a").args[2]
    assert name == "7"
    assert isinstance(name, GroupName)


def test_graphs_inside_graphs() -> None:
    text = """\
graph
  %x: f32[4] = placeholder
  %p: b8[] = placeholder
  %yes = get_attr yes
  %no = get_attr no
  %cond: (f32[4],) = higher_order.cond(%p, %yes, %no, (%x,))
  %out: f32[4] = %cond[0]
  return (%out,)

graph yes
  attr inner.bias: f32[4] = [0.0, 1.0, nan, -0.0]
  %x: f32[4] = placeholder
  %bias: f32[4] = get_attr inner.bias
  %sum: f32[4] = aten.add.Tensor(%x, %bias)
  return (%sum,)

graph no
  %x: f32[4] = placeholder
  return (%x,)
"""
    # `sum` is a builtin of Python, so a graph would rename it.
    gm = round_trip(text.replace("%sum", "%sum_1"))
    assert isinstance(gm.yes, fx.GraphModule)
    x = torch.arange(4.0)
    assert torch.equal(gm(x, torch.tensor(False))[0], x)


def test_attributes_of_every_kind() -> None:
    gm = round_trip(
        "graph\n  attr a: i64[2, 2] = [1, 2, 3, 4]\n"
        "  parameter layers.0.w: f32[1] requires_grad = [0.10000000149011612]\n"
        '  attr h: f32[1] = hex("0100c07f")\n  attr v: bf16[512, 512] = fake\n  attr g = group("0")\n  attr n = 3\n'
        '  attr m = object("x.Mesh")\n'
        "  %a: ? = get_attr a\n  %w: ? = get_attr layers.0.w\n  %h: ? = get_attr h\n  %v: ? = get_attr v\n"
        "  %g = get_attr g\n  %n = get_attr n\n  %m = get_attr m\n  return (%a, %w, %h, %v, %g, %n, %m)\n"
    )
    assert torch.equal(gm.a, torch.tensor([[1, 2], [3, 4]]))
    assert isinstance(gm.layers.get_submodule("0").w, torch.nn.Parameter)
    assert gm.h.view(torch.int32).item() == 0x7FC00001
    assert gm.g == "0"
    assert gm.m == Opaque("x.Mesh")


def test_large_constants_travel_beside_the_text() -> None:
    root = torch.nn.Module()
    root.register_buffer("c", torch.randn(8, 8).t())
    graph = fx.Graph()
    graph.output(graph.get_attr("c"))
    gm = fx.GraphModule(root, graph)
    text = print_graph(gm)
    again = parse_graph(text, constants=constants_of(gm))
    assert torch.equal(again.c, gm.c)
    assert again.c.stride() == (1, 8)
    assert print_graph(again) == text
    with pytest.raises(GraphFileError, match="not part of the text"):
        parse_graph(text)


def test_long_lines_fold_and_read_the_same() -> None:
    names = [f"gradient_of_parameter_{i}" for i in range(30)]
    lines = [f"  %{n}: f32[4] = placeholder" for n in names]
    listed = ", ".join(f"%{n}" for n in names)
    types = ", ".join("f32[4]" for _ in names)
    one_line = "\n".join(
        [
            "graph",
            *lines,
            f'  %r: [{types}] = _c10d_functional.all_reduce_coalesced([{listed}], "sum", "0")',
            "  return (%r,)",
        ]
    )
    folded = print_graph(parse_graph(one_line))
    assert max(map(len, folded.splitlines())) <= 110
    assert "    %gradient_of_parameter_7,\n" in folded
    round_trip(folded)


def test_comments_and_blank_lines_are_allowed() -> None:
    text = "# a case\ngraph  # the graph\n\n  %x: f32[2] = placeholder  # in\n\n  return %x\n\n"
    assert print_graph(parse_graph(text)) == "graph\n  %x: f32[2] = placeholder\n  return %x\n"


def test_locations_and_notes_round_trip() -> None:
    text = """\
graph
  %x: f32[2] = placeholder
  at /home/u/a model.py:12 in forward | layers.0.attn Attention | return self.b(x)  # why | how
  %a: f32[2] = aten.neg(%x) with counterpoint={"bucket": [1, 2]}, partitioner_tag="is_forward"
  %b: f32[2] = aten.neg(%a)
  at /home/u/model.py:13 in <lambda> | backward of layers.0.attn Attention
  %c: f32[2] = aten.neg(%b)
  at ?
  %d: f32[2] = aten.neg(%c)
  return %d
"""
    gm = parse_graph(text)
    assert print_graph(gm, locations=True, notes=True) == text
    assert " at " not in print_graph(gm)
    assert 'File "/home/u/a model.py", line 12, in forward' in node(gm, "b").meta["stack_trace"]
    assert list(node(gm, "a").meta["nn_module_stack"].values()) == [("layers.0.attn", "Attention")]
    assert "fwd_nn_module_stack" in node(gm, "c").meta
    assert "stack_trace" not in node(gm, "d").meta


@pytest.mark.parametrize("file", ["/u/model.py", example_models.__file__])
def test_the_users_frame_is_written_not_torchs(file: str) -> None:
    """The models that stand in for a user's count as theirs."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["stack_trace"] = (
        f'  File "{file}", line 3, in forward\n    y = f(x)\n  File "{torch.__file__}", line 9, in f\n    g()\n'
    )
    graph.output(x)
    text = print_graph(fx.GraphModule({}, graph), locations=True)
    assert f"  at {file}:3 in forward | | y = f(x)\n" in text


def test_values_that_have_no_text_are_refused_with_the_node() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    neg = graph.call_function(torch.ops.aten.neg.default, (x,))
    graph.output(neg)
    gm = fx.GraphModule({}, graph)
    neg.args = (x, torch.Generator())
    with pytest.raises(GraphError, match=rf"Generator.*\[node {neg.name}\]"):
        print_graph(gm)


def test_python_functions_outside_the_table_are_refused() -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(print, (graph.placeholder("x"),)))
    with pytest.raises(GraphError, match="neither an operator nor a function"):
        print_graph(fx.GraphModule({}, graph))


def test_the_text_is_the_same_in_another_process() -> None:
    program = (
        "import sys; from counterpoint.ir.text import parse_graph, print_graph;"
        "sys.stdout.write(print_graph(parse_graph(sys.stdin.read())))"
    )
    text = HAND_WRITTEN.replace("graph\n", "graph\n  symbol s0 = 9\n  symbol s1 = 5\n").replace(
        "%x: f32[64", "%x: f32[s0*s1 + 4*s1 + s0"
    )
    ours = print_graph(parse_graph(text))
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            input=text,
            text=True,
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": "", "OMP_NUM_THREADS": "1"},
        )
        assert done.stdout == ours
