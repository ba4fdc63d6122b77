"""A graph from its text. Builds nodes, fake tensors and symbols; runs nothing that the text says."""

from __future__ import annotations

import builtins
import keyword
import operator
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from counterpoint import _torch
from counterpoint.ir.text.constants import ConstantReader
from counterpoint.ir.text.lex import Cursor
from counterpoint.ir.text.notes import read_location, read_notes
from counterpoint.ir.text.symbols import SymbolReader
from counterpoint.ir.text.types import TypeReader
from counterpoint.ir.text.values import ValueReader, read_operator

_PATH = re.compile(r"[^\W\d]\w*(\.\w+)*")
_LISTED_GRAPH = "`graph`, an `attr` line, a node such as `%x: f32[4] = placeholder`, or `return`"


def parse_graph(
    text: str,
    *,
    constants: Mapping[str, bytes] | None = None,
    first_line: int = 1,
    source: str = "graph text",
) -> fx.GraphModule:
    """The graph of a text that `print_graph` wrote or a person did.

    `constants` holds the data of tensors that the text names by checksum. `first_line` and `source` say in error
    messages where the text comes from. All values of the graph are fake tensors of one mode. Metadata is what the
    text says; nothing is computed from the operators.
    """
    cursor = Cursor(text, first_line=first_line, source=source)
    try:
        return _Parser(cursor, constants or {}).parse()
    except RecursionError as problem:
        raise cursor.error("brackets that are not nested so deeply") from problem


class _Block:
    """One graph while it is being read: its nodes by name and the attributes that they may name."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.graph = fx.Graph()
        self.nodes: dict[str, fx.Node] = {}
        self.attributes: dict[str, Any] = {}
        self.wanted: dict[str, int] = {}
        """Attributes that nodes named before they were known, and where: graphs inside come later in the text."""


class _Parser:
    def __init__(self, cursor: Cursor, constants: Mapping[str, bytes]) -> None:
        self._cursor = cursor
        self._constants = constants
        environment = ShapeEnv()
        self._symbols = SymbolReader(environment)
        self._types = TypeReader(cursor, self._symbols, _torch.FakeTensorMode(shape_env=environment))

    def parse(self) -> fx.GraphModule:
        """Read all graphs, then put the inner ones into the outer ones."""
        cursor = self._cursor
        while cursor.kind == "line":
            cursor.take()
        blocks: dict[str, _Block] = {}
        while cursor.kind != "end":
            start, block = cursor.position, self._read_block(outermost=not blocks)
            if block.path in blocks:
                raise cursor.error("", at=start, problem=f"graph {block.path} stands here twice")
            blocks[block.path] = block
        if not blocks:
            raise cursor.error("`graph` on the first line")
        self._symbols.finish()
        return self._assemble(blocks)

    def _assemble(self, blocks: dict[str, _Block]) -> fx.GraphModule:
        """Graph modules from the innermost outwards."""
        made: dict[str, fx.GraphModule] = {}
        for path in sorted(blocks, key=len, reverse=True):
            block = blocks[path]
            for name, start in block.wanted.items():
                inner = f"{path}.{name}" if path else name
                if inner not in made:
                    raise self._cursor.error(
                        "", at=start, problem=f"there is neither an `attr {name}` above nor a `graph {inner}` below"
                    )
                block.attributes[name] = made.pop(inner)
            made[path] = self._graph_module(block)
        if len(made) > 1:
            stray = next(path for path in made if path)
            raise self._cursor.error("", problem=f"no get_attr node uses graph {stray}")
        return made[""]

    def _graph_module(self, block: _Block) -> fx.GraphModule:
        try:
            return fx.GraphModule(block.attributes, block.graph)
        except Exception as problem:
            # Writing the Python of calls with wrong arguments fails in every kind of way.
            name = f"graph {block.path}" if block.path else "the outermost graph"
            what = f"{name} cannot be a Python function: {type(problem).__name__}: {problem}"
            raise self._cursor.error("", problem=what, next_step="correct the arguments of its calls") from problem

    def _read_block(self, *, outermost: bool) -> _Block:
        cursor = self._cursor
        cursor.expect("graph")
        start, path = cursor.position, "" if cursor.kind == "line" else cursor.take_kind("word", "the path of a graph")
        if outermost == bool(path):
            wanted = "`graph` alone: the outermost graph comes first" if path else "the path of an inner graph"
            raise cursor.error(wanted, at=start)
        cursor.end_line()
        block = _Block(path)
        if outermost:
            self._read_declarations()
        values = ValueReader(cursor, self._symbols, block.nodes)
        self._read_attributes(block, values)
        self._read_nodes(block, values)
        return block

    def _read_declarations(self) -> None:
        cursor = self._cursor
        while cursor.accept("symbol"):
            self._symbols.read_declaration(cursor)
            cursor.end_line()
        while cursor.accept("assume"):
            self._symbols.read_fact(cursor)
            cursor.end_line()

    def _read_attributes(self, block: _Block, values: ValueReader) -> None:
        cursor = self._cursor
        reader = ConstantReader(cursor, self._types, values, self._constants)
        while cursor.at("attr") or cursor.at("parameter"):
            word = cursor.take()
            start, path = cursor.position, cursor.take_kind("word", "the name of an attribute")
            self._check_path(path, start)
            if path in block.attributes:
                raise cursor.error("", at=start, problem=f"attribute {path} is defined twice")
            block.attributes[path] = reader.read(parameter=word == "parameter")
            cursor.end_line()

    def _read_nodes(self, block: _Block, values: ValueReader) -> None:
        cursor, place = self._cursor, dict[str, Any]()
        while not cursor.accept("return"):
            if cursor.kind == "location":
                place = read_location(cursor)
            elif cursor.kind == "node":
                self._read_node(block, values, place)
            elif cursor.kind == "end" or cursor.at("graph"):
                raise cursor.error("`return`", next_step="the text is truncated: every graph ends with its `return`")
            else:
                raise cursor.error(_LISTED_GRAPH)
            cursor.end_line()
        block.graph.output(values.read())
        cursor.end_line()

    def _read_node(self, block: _Block, values: ValueReader, place: dict[str, Any]) -> None:
        cursor, start = self._cursor, self._cursor.position
        name = cursor.take()[1:]
        self._check_name(name, block, start)
        metadata = dict(place)
        if cursor.accept(":") and not cursor.accept("?"):
            metadata |= self._types.read_metadata()
        cursor.expect("=")
        node = self._read_made_by(block, values, name)
        if cursor.accept("with"):
            metadata |= read_notes(cursor, values, self._symbols)
        node.meta.update(metadata)
        block.nodes[name] = node

    def _check_name(self, name: str, block: _Block, start: int) -> None:
        if name in block.nodes:
            raise self._cursor.error("", at=start, problem=f"node %{name} is defined twice in this graph")
        if keyword.iskeyword(name) or hasattr(builtins, name) or name in ("inf", "nan", "torch", "device"):
            raise self._cursor.error(
                "", at=start, problem=f"{name} is a name of Python's own", next_step=f"call the node %{name}_1"
            )

    def _check_path(self, path: str, start: int) -> None:
        parts = path.split(".")
        if not _PATH.fullmatch(path) or any(part.startswith("__") or keyword.iskeyword(part) for part in parts):
            raise self._cursor.error("an attribute path such as `layers.0.weight`", at=start)
        if hasattr(torch.nn.Module(), parts[0]) or parts[0] in ("graph", "code"):
            raise self._cursor.error("", at=start, problem=f"{parts[0]} is a name of the module's own")

    def _read_made_by(self, block: _Block, values: ValueReader, name: str) -> fx.Node:
        cursor, graph = self._cursor, block.graph
        if cursor.kind == "node":
            source = values.read_node()
            cursor.expect("[")
            index = values.read()
            cursor.close("]")
            return self._create(graph, name, "call_function", operator.getitem, (source, index), {})
        if cursor.accept("placeholder"):
            return self._read_placeholder(graph, values, name)
        if cursor.accept("get_attr"):
            start, path = cursor.position, cursor.take_kind("word", "the name of an attribute")
            self._check_path(path, start)
            if path not in block.attributes:
                block.wanted.setdefault(path, start)
            return self._create(graph, name, "get_attr", path, (), {})
        if cursor.kind != "word":
            raise cursor.error("an operator such as `aten.mm`, `%node[index]`, `placeholder` or `get_attr`")
        target = read_operator(cursor)
        cursor.expect("(")
        args, kwargs = self._read_arguments(values)
        return self._create(graph, name, "call_function", target, args, kwargs)

    def _create(
        self, graph: fx.Graph, name: str, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> fx.Node:
        # Arguments come after creation, where a symbolic number among them is taken without a warning.
        node = graph.create_node(op, target, (), {}, name=name)
        node.args, node.kwargs = args, kwargs
        if node.name != name:
            raise self._cursor.error(
                "", problem=f"the name %{name} cannot be used in a graph", next_step=f"call it %{node.name}"
            )
        return node

    def _read_placeholder(self, graph: fx.Graph, values: ValueReader, name: str) -> fx.Node:
        cursor, start = self._cursor, self._cursor.position
        args, kwargs = self._read_arguments(values) if cursor.accept("(") else ((), {})
        target = args[0] if args else name
        if len(args) > 1 or kwargs.keys() - {"default"} or not isinstance(target, str) or not _is_name(target):
            raise cursor.error('`placeholder`, `placeholder("name")` or `placeholder(default=value)`', at=start)
        return self._create(graph, name, "placeholder", target, tuple(kwargs.values()), {})

    def _read_arguments(self, values: ValueReader) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional arguments stay positional and named ones named: they are different nodes to a matcher."""
        cursor, args, kwargs = self._cursor, [], dict[str, Any]()
        while cursor.items(")"):
            if cursor.next_is("="):
                start, name = cursor.position, cursor.take_kind("word", "the name of an argument")
                if name in kwargs or not _is_name(name):
                    raise cursor.error("", at=start, problem=f"argument {name} is given twice or is not a name")
                cursor.expect("=")
                kwargs[name] = values.read()
            elif kwargs:
                raise cursor.error("a named argument: positional ones come first")
            else:
                args.append(values.read())
            cursor.comma(")")
        return tuple(args), kwargs


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)
