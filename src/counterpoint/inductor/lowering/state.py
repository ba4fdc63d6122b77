"""What must be remembered while one graph is lowered, kept on that graph: it can neither leak into another graph nor
outlive it, however many graphs give their buffers the same names, in however many threads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch.fx import GraphModule, Node

from counterpoint.inductor.groups import graph_modules
from counterpoint.ir import ops

OURS = "counterpoint_lowering"
"""Key of a graph module's metadata that says that we compile it."""
_STATE = "counterpoint_lowering_state"


@dataclass
class LoweringState:
    """One graph's."""

    skipped: set[str] = field(default_factory=set)
    """Buffers whose wait has nothing left to wait for."""
    flights: dict[str, tuple[ir.IRNode, ...]] = field(default_factory=dict)
    """For each buffer that is being received into: what is sent meanwhile, and must stay as it is until the wait."""
    last: frozenset[str] = frozenset()
    """Buffers that the last communicating kernel writes."""


def state_of(graph: GraphLowering) -> LoweringState:
    """The state of a graph, made when first asked for."""
    state: LoweringState = vars(graph).setdefault(_STATE, LoweringState())
    return state


def claim(gm: GraphModule) -> None:
    """Say that we compile this graph module and those that it calls, as far as they communicate."""
    for module in graph_modules(gm):
        if any(_communicates(node) for node in module.graph.nodes):
            module.meta[OURS] = True


def _communicates(node: Node) -> bool:
    # Torch wraps operators that write into their arguments: the wrapper's first argument is then the operator.
    return any(ops.spec_of(target) is not None for target in (node.target, *node.args[:1]))


def is_ours(graph: Any) -> bool:
    """Whether the graph that is being lowered is one of ours."""
    return isinstance(graph, GraphLowering) and OURS in getattr(graph.module, "meta", {})


def keep_order(graph: GraphLowering, made: Iterable[ir.Operation]) -> None:
    """Let the communicating kernels among these operations, made for one call, run behind those of the call before.

    Inductor keeps the order of the collectives that it knows. Other operators move when kernels are fused around them,
    which depends on sizes: ranks with uneven shards would then wait for each other in different collectives.
    """
    state = state_of(graph)
    for operation in made:
        # The others copy what is sent, or stand for one of several results.
        if isinstance(operation, ir.FallbackKernel):
            graph.additional_buffer_deps[operation.get_operation_name()].update(state.last)
            state.last = frozenset(out.get_name() for out in operation.get_outputs())


def keep_in_flight(graph: GraphLowering, results: Iterable[ir.IRNode], sent: Iterable[ir.IRNode]) -> None:
    """Remember what must not be overwritten before each of the results has been waited for."""
    held = tuple(sent)
    state_of(graph).flights.update({result.get_name(): held for result in results})
