"""A traced step as a reader would have written it: named inputs, no leftovers of tracing, source lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from counterpoint._torch import OpOverload, operator_name
from counterpoint.capture.signature import Slot, node_name
from counterpoint.ir import metadata
from counterpoint.ir.effects import Effect, effect_of
from counterpoint.ir.fake import set_value

_ATEN = torch.ops.aten
_SAME_VALUE = (_ATEN.detach.default, _ATEN.alias.default, _ATEN.view.default, _ATEN._unsafe_view.default)
_LARGEST_LITERAL = 1


def tidy(gm: GraphModule, inputs: Iterable[Slot]) -> GraphModule:
    """Clean a traced graph in place; what it computes stays the same."""
    _remember_lines(gm)
    _drop_annotations(gm)
    _write_literals(gm)
    _look_through_aliases(gm)
    _drop_unused(gm)
    _name_inputs(gm, inputs)
    gm.graph.lint()
    gm.delete_all_unused_submodules()
    gm.recompile()
    return gm


def keep_outputs(gm: GraphModule, slots: Iterable[Slot]) -> tuple[Slot, ...]:
    """Drop the results that are inputs handed through unchanged; answers the slots of the others."""
    output = _output_of(gm)
    results: Any = output.args[0]
    kept = [(slot, node) for slot, node in zip(slots, results, strict=True) if node.op != "placeholder"]
    output.args = (tuple(node for _, node in kept),)
    gm.recompile()
    return tuple(slot for slot, _ in kept)


def _output_of(gm: GraphModule) -> Node:
    output: Node = gm.graph.output_node()
    return output


def _remember_lines(gm: GraphModule) -> None:
    """Backward nodes get source line and module of the forward node whose sequence number autograd gave them."""
    lines: dict[int, str] = {}
    modules: dict[int, Any] = {}
    for node in gm.graph.nodes:
        number = node.meta.get("seq_nr")
        if number is None:
            continue
        if node.stack_trace and not node.meta.get("autograd_backward"):
            lines.setdefault(number, node.stack_trace)
            if "nn_module_stack" in node.meta:
                modules.setdefault(number, node.meta["nn_module_stack"])
        elif node.meta.get("autograd_backward") and number in lines:
            node.stack_trace = lines[number]
            if number in modules:
                node.meta["fwd_nn_module_stack"] = modules[number]


def _drop_annotations(gm: GraphModule) -> None:
    for node in reversed(list(gm.graph.nodes)):
        if isinstance(node.target, OpOverload) and operator_name(node.target)[0] == "profiler" and not node.users:
            gm.graph.erase_node(node)


def _write_literals(gm: GraphModule) -> None:
    """A number made into a tensor becomes a call that makes it: the graph needs no attribute for it."""
    for node in list(gm.graph.nodes):
        source = node.all_input_nodes[0] if node.target is _ATEN.lift_fresh_copy.default else None
        value = getattr(gm, str(source.target), None) if source is not None and source.op == "get_attr" else None
        if not isinstance(value, Tensor) or value.numel() > _LARGEST_LITERAL or value.numel() == 0:
            continue
        with gm.graph.inserting_before(node):
            made = gm.graph.call_function(
                _ATEN.full.default, (list(value.shape), value.item()), {"dtype": value.dtype, "device": value.device}
            )
        set_value(made, metadata.value_of(node))
        made.stack_trace = node.stack_trace
        node.replace_all_uses_with(made)
        gm.graph.erase_node(node)


def _look_through_aliases(gm: GraphModule) -> None:
    for node in list(gm.graph.nodes):
        if node.target in _SAME_VALUE and _looks_alike(node, node.all_input_nodes[0]):
            node.replace_all_uses_with(node.all_input_nodes[0])
            gm.graph.erase_node(node)


def _looks_alike(node: Node, source: Node) -> bool:
    after, before = metadata.tensor_of(node), metadata.tensor_of(source)
    if after.dtype != before.dtype or after.ndim != before.ndim:
        return False
    sizes = (*zip(after.shape, before.shape, strict=True), *zip(after.stride(), before.stride(), strict=True))
    # Comparing symbols that are not the very same would put assumptions into the graph.
    return all(a is b or (isinstance(a, int) and isinstance(b, int) and a == b) or str(a) == str(b) for a, b in sizes)


def _drop_unused(gm: GraphModule) -> None:
    for node in reversed(list(gm.graph.nodes)):
        droppable = node.op not in ("placeholder", "output") and effect_of(node) is Effect.PURE
        if droppable and not node.users:
            gm.graph.erase_node(node)


def _name_inputs(gm: GraphModule, inputs: Iterable[Slot]) -> None:
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node, slot in zip(placeholders, inputs, strict=True):
        with gm.graph.inserting_before(node):
            named = gm.graph.placeholder(node_name(slot))
        named.meta.update(node.meta)
        node.replace_all_uses_with(named)
        gm.graph.erase_node(node)
