"""What an operator takes on a processor, roughly: the longer of its arithmetic and its memory traffic.

Good enough to tell how much compute there is for communication to hide behind. What cannot be estimated is `None`, not
nought: it takes some time that nobody knows, and nothing is planned to hide behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import torch
from torch.fx import Node
from torch.utils.flop_counter import flop_registry

from counterpoint._torch import OpOverload, size_hint
from counterpoint.cost.processor import PROCESSORS as PROCESSORS
from counterpoint.cost.processor import Processor as Processor
from counterpoint.cost.processor import processor_of as processor_of
from counterpoint.cost.traffic import starts_kernel, traffic_bytes
from counterpoint.ir import effects, metadata, ops
from counterpoint.ir.effects import Effect

_KNOWN_NAMESPACES = frozenset({"aten", "prims", "counterpoint"})
"""Operators whose work follows from the sizes of what they read and write. Others may do anything inside."""


def elapsed_us(nodes: Iterable[Node], processor: Processor) -> tuple[float, ...]:
    """For each node how long those before it compute; after the last the whole time."""
    return tuple(accumulate((node_us(node, processor) or 0.0 for node in nodes), initial=0.0))


def node_us(node: Node, processor: Processor, *, fuses: bool = True) -> float | None:
    """The time of one node; None where it cannot be told. Views, inputs and communication take none.

    fuses: whether the code generator puts pointwise neighbours into one kernel.
    """
    if takes_no_time(node):
        return 0.0
    if not isinstance(node.target, OpOverload) or not metadata.has_value(node):
        return None
    if not metadata.tensors_of(node) and effects.effect_of(node) is not Effect.MUTATES:
        return 0.0
    flop = flop_of(node)
    if flop is None and node.target.namespace not in _KNOWN_NAMESPACES:
        return None
    traffic = traffic_bytes(node, fuses=fuses)
    if traffic is None or effects.effect_of(node) is Effect.BARRIER:
        return None
    floor = processor.kernel_us if starts_kernel(node, fuses=fuses) else 0.0
    arithmetic = processor.arithmetic_us(flop, _dtype(node)) if flop else 0.0
    return max(floor, processor.memory_us(traffic), arithmetic)


def takes_no_time(node: Node) -> bool:
    """Whether a node is no work for the processor: inputs, outputs, views, sizes and communication."""
    if node.op != "call_function" or ops.is_collective(node) or ops.is_wait(node) or effects.is_view_like(node):
        return True
    return not isinstance(node.target, OpOverload) and effects.effect_of(node) is Effect.PURE and _is_number(node)


def _is_number(node: Node) -> bool:
    return not metadata.has_value(node) or not metadata.tensors_of(node)


def _dtype(node: Node) -> torch.dtype | None:
    """The narrowest type that goes into the arithmetic: that of the operands, not that of the sum."""
    found = [tensor.dtype for source in node.all_input_nodes for tensor in _tensors(source)]
    return min(found, key=lambda dtype: dtype.itemsize, default=None)


def _tensors(node: Node) -> tuple[torch.Tensor, ...]:
    return metadata.tensors_of(node) if metadata.has_value(node) else ()


def flop_of(node: Node) -> int | None:
    """Operations of products, convolutions and attention, by torch's own formulas; None for other operators."""
    formula: Any = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return None
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
    try:
        return size_hint(formula(*args, **kwargs, out_val=node.meta["val"]))
    except Exception:
        # The formulas are not written for every overload, and an estimate must never fail a compile.
        return None
