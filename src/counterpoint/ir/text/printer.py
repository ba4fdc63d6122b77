"""A graph as text. The same graph gives the same text in every run and process."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from counterpoint.errors import GraphError
from counterpoint.ir.text import words
from counterpoint.ir.text.constants import checksum, constant_text, is_fake, stored_form, tensor_bytes
from counterpoint.ir.text.layout import fold
from counterpoint.ir.text.notes import LocationPrinter, NotePrinter
from counterpoint.ir.text.symbols import SymbolPrinter
from counterpoint.ir.text.types import TypePrinter
from counterpoint.ir.text.values import ValuePrinter

_INDENT = 2


def print_graph(gm: fx.GraphModule, *, locations: bool = False, notes: bool = False) -> str:
    """The text of a graph and of the graphs inside it.

    `locations` adds the user's source lines and modules, `notes` the plain metadata that passes leave on nodes.
    Tensors of more than sixteen elements are named by checksum; `constants_of` holds their data.
    """
    return _Printer(locations=locations, notes=notes).text(gm)


def constants_of(gm: fx.GraphModule) -> dict[str, bytes]:
    """The data that the text of a graph refers to, by checksum."""
    found: dict[str, bytes] = {}
    for _, inner in _graphs(gm):
        for path in _attribute_paths(inner):
            value = attribute(inner, path)
            if isinstance(value, torch.Tensor) and not is_fake(value):
                data = tensor_bytes(value)
                found[checksum(data)] = data
    return found


def attribute(gm: fx.GraphModule, path: str) -> Any:
    """What a `get_attr` node of this path yields."""
    value: Any = gm
    for name in path.split("."):
        if not hasattr(value, name):
            raise GraphError(
                f"a get_attr node names the attribute {path}, which its graph module does not have",
                next_step="set the attribute on the graph module before printing",
            )
        value = getattr(value, name)
    return value


def _attribute_paths(gm: fx.GraphModule) -> list[str]:
    """The paths that get_attr nodes name, each once, in order of use."""
    return list(dict.fromkeys(str(node.target) for node in gm.graph.nodes if node.op == "get_attr"))


def _graphs(gm: fx.GraphModule, path: str = "") -> list[tuple[str, fx.GraphModule]]:
    """The graph and those inside it, with their paths, outer before inner."""
    found = [(path, gm)]
    for name in _attribute_paths(gm):
        inner = attribute(gm, name)
        if isinstance(inner, fx.GraphModule):
            found += _graphs(inner, f"{path}.{name}" if path else name)
    return found


class _Printer:
    def __init__(self, *, locations: bool, notes: bool) -> None:
        self._symbols = SymbolPrinter()
        self._values = ValuePrinter(self._symbols)
        self._types = TypePrinter(self._symbols)
        self._notes = NotePrinter(self._values, self._symbols, notes=notes)
        self._locations = LocationPrinter() if locations else None

    def text(self, gm: fx.GraphModule) -> str:
        blocks = [(path, self._block(inner)) for path, inner in _graphs(gm)]
        # The symbols are known only after all graphs were written.
        declarations = [line for text in self._symbols.lines() for line in fold(text, _INDENT)]
        lines: list[str] = []
        for path, block in blocks:
            lines += ["", f"graph {path}"] if path else ["graph", *declarations]
            lines += block
        return "\n".join(lines) + "\n"

    def _block(self, gm: fx.GraphModule) -> list[str]:
        lines = [line for path in _attribute_paths(gm) for line in self._attribute(gm, path)]
        place = "at ?"
        for node in gm.graph.nodes:
            if self._locations is not None and node.op != "output":
                here = self._locations.line(node)
                if here != place:
                    lines.append(" " * _INDENT + here)
                    place = here
            lines += fold(self._statement(gm, node), _INDENT)
        return lines

    def _attribute(self, gm: fx.GraphModule, path: str) -> list[str]:
        value = attribute(gm, path)
        if isinstance(value, fx.GraphModule):
            return []
        if not isinstance(value, torch.Tensor):
            return fold(f"attr {path} = {self._values.text(value)}", _INDENT)
        word = "parameter" if isinstance(value, torch.nn.Parameter) else "attr"
        stored = stored_form(value)
        text = f"{word} {path}: {self._types.tensor(stored)} = {constant_text(stored, self._values)}"
        return fold(text, _INDENT)

    def _statement(self, gm: fx.GraphModule, node: fx.Node) -> str:
        if node.op == "output":
            return f"return {self._values.text(node.args[0])}"
        return f"%{node.name}{self._type(gm, node)} = {self._made_by(node)}{self._notes.text(node)}"

    def _type(self, gm: fx.GraphModule, node: fx.Node) -> str:
        if "val" in node.meta:
            return f": {self._types.text(node.meta['val'])}"
        # What is not a tensor needs no type to be read by it.
        tensor = node.op != "get_attr" or isinstance(attribute(gm, str(node.target)), torch.Tensor)
        return ": ?" if tensor else ""

    def _made_by(self, node: fx.Node) -> str:
        if node.op == "placeholder":
            own_name = [] if node.target == node.name else [self._values.text(node.target)]
            default = [f"default={self._values.text(node.args[0])}"] if node.args else []
            return f"placeholder({', '.join(own_name + default)})" if own_name or default else "placeholder"
        if node.op == "get_attr":
            return f"get_attr {node.target}"
        if node.op != "call_function":
            raise GraphError(
                f"a {node.op} node cannot be written as text",
                where=f"node {node.name}",
                next_step="capture the graph at operator level, where every call is an operator",
            )
        return self._call(node)

    def _call(self, node: fx.Node) -> str:
        word = words.operator_word(node.target)
        if word is None:
            raise GraphError(
                f"the node calls {node.target}, which is neither an operator nor a function that the text knows",
                where=f"node {node.name}",
                next_step="register the function as an operator (torch.library.custom_op) and call that",
            )
        try:
            if word == "operator.getitem" and len(node.args) == 2 and not node.kwargs:
                source, index = node.args
                if isinstance(source, fx.Node):
                    return f"%{source.name}[{self._values.text(index)}]"
            arguments = [self._values.text(a) for a in node.args]
            arguments += [f"{name}={self._values.text(a)}" for name, a in node.kwargs.items()]
        except GraphError as problem:
            raise GraphError(problem.what, where=f"node {node.name}", next_step=problem.next_step) from None
        return f"{word}({', '.join(arguments)})"
