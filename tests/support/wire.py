"""Graphs as bytes, for their way to a rank: nodes, operators by name, attributes by value. No metadata, no code.

The text form of `counterpoint.ir.text` is not used here on purpose: a differential test must not depend on the printer
that it may be testing.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import fx

from counterpoint.ir import packing
from tests.support.worker import pack, unpack


def dump_graph(gm: fx.GraphModule) -> bytes:
    """The bytes of a graph module; `load_graph` makes an equal one elsewhere."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(_nodes(gm.graph))
    return pack((buffer.getvalue(), _attributes(gm)))


def load_graph(data: bytes) -> fx.GraphModule:
    """The graph module that `dump_graph` wrote."""
    nodes, attributes = unpack(data)
    root = torch.nn.Module()
    for name, value in attributes.items():
        _set_attribute(root, name, load_graph(value.data) if isinstance(value, _Submodule) else value)
    graph = fx.Graph()
    made: dict[str, fx.Node] = {}
    for name, op, target, args, kwargs in pickle.loads(nodes):
        made[name] = graph.create_node(op, target, _with_nodes(args, made), _with_nodes(kwargs, made), name)
    return fx.GraphModule(root, graph)


class _NodeName(str):
    """Stands for a node among arguments."""


class _Submodule:
    def __init__(self, data: bytes) -> None:
        self.data = data


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch._ops.OpOverload):
            return _overload, (value._schema.name, value._overloadname)
        if isinstance(value, torch._ops.HigherOrderOperator):
            return _higher_order, (value.name(),)
        if isinstance(value, torch._ops.OpOverloadPacket):
            return _packet, (value._qualified_op_name,)
        return NotImplemented


def _packet(qualified_name: str) -> Any:
    namespace, name = qualified_name.split("::")
    if namespace == "counterpoint" and hasattr(packing.OPS, name):
        # Read from here, so that a rank that has done nothing else yet has it registered.
        return getattr(packing.OPS, name)
    return getattr(getattr(torch.ops, namespace), name)


def _overload(qualified_name: str, overload: str) -> Any:
    return getattr(_packet(qualified_name), overload or "default")


def _higher_order(name: str) -> Any:
    return getattr(torch.ops.higher_order, name)


def _nodes(graph: fx.Graph) -> list[tuple[Any, ...]]:
    def named(node: fx.Node) -> Any:
        return _NodeName(node.name)

    return [(n.name, n.op, n.target, fx.map_arg(n.args, named), fx.map_arg(n.kwargs, named)) for n in graph.nodes]


def _with_nodes(value: Any, made: dict[str, fx.Node]) -> Any:
    if isinstance(value, _NodeName):
        return made[value]
    if isinstance(value, dict):
        return {key: _with_nodes(item, made) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(_with_nodes(part, made) for part in (value.start, value.stop, value.step)))
    if isinstance(value, (list, tuple)):
        return type(value)(_with_nodes(item, made) for item in value)
    return value


def _attributes(gm: fx.GraphModule) -> dict[str, Any]:
    targets = {str(n.target) for n in gm.graph.nodes if n.op in ("get_attr", "call_module")}
    return {name: _attribute(gm, name) for name in sorted(targets)}


def _attribute(gm: fx.GraphModule, name: str) -> Any:
    value: Any = gm
    for part in name.split("."):
        value = getattr(value, part)
    return _Submodule(dump_graph(value)) if isinstance(value, fx.GraphModule) else value


def _set_attribute(root: torch.nn.Module, name: str, value: Any) -> None:
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            setattr(root, part, torch.nn.Module())
        root = getattr(root, part)
    setattr(root, last, value)
