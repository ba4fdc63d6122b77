"""The names of `torch._inductor.fx_passes.ddp_fusion` as in torch 2.13, thin over `fuse-ddp` and `schedule-waits`.

    from counterpoint.inductor.fx_passes.ddp_fusion import fuse_ddp_communication

Signatures, operators and the counter `counters["inductor"]["ddp_buckets"]` are inductor's. What differs is what goes
wrong there: groups, reductions, element types and divisors are told apart, symbolic sizes stay symbolic, mutation is
respected, `move_block_before` keeps the order of its nodes, and what cannot be fused is left alone instead of failing.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch._dynamo.utils import counters
from torch._inductor.virtualized import V
from torch.fx.passes.graph_transform_observer import GraphTransformObserver
from torch.utils._ordered_set import OrderedSet

from counterpoint.errors import CounterpointError, GraphError, OptionError
from counterpoint.inductor.fx_passes.order import ordered_view
from counterpoint.ir import collective as ir
from counterpoint.ir import fake, metadata
from counterpoint.ir.collection import without_collection
from counterpoint.ir.edit import GraphEditor
from counterpoint.ir.reason import Refusal
from counterpoint.passes.ddp_fusion import FuseDdp
from counterpoint.passes.ddp_merge import FusionMethod, fuse
from counterpoint.passes.emitting import GraphEmit
from counterpoint.passes.schedule_waits import delay_waits

__all__ = [
    "CommBlock",
    "call_function",
    "fuse_ddp_communication",
    "fuse_ddp_with_coalesced_op",
    "fuse_ddp_with_concat_op",
    "get_all_comm_blocks",
    "get_comm_block",
    "move_block_after",
    "move_block_before",
    "schedule_comm_wait",
]

ATEN = torch.ops.aten
LOGGER = logging.getLogger("comm_fusion")


def move_block_after(block: list[fx.Node], target_node: fx.Node) -> None:
    """Put the nodes right after the target, in the order of the list."""
    for node in block:
        target_node.append(node)
        target_node = node


def move_block_before(block: list[fx.Node], target_node: fx.Node) -> None:
    """Put the nodes right before the target, in the order of the list (inductor's function turns it around)."""
    for node in block:
        target_node.prepend(node)


def call_function(
    graph: fx.Graph,
    target: str | Callable[..., Any],
    args: tuple[fx.node.Argument, ...] | None = None,
    kwargs: dict[str, fx.node.Argument] | None = None,
) -> fx.Node:
    """A call at the graph's insertion point, with its fake value and `tensor_meta`."""
    if isinstance(target, str):
        raise RuntimeError(f"Call function should not get a str target {target=}")
    node = graph.call_function(target, args, kwargs)
    try:
        mode = fake.fake_mode_of(graph)
    except GraphError:
        mode = V.fake_mode
    return fake.set_value(node, fake.run_fake(node, mode))


@dataclass(eq=False)
class CommBlock:
    """A collective with its waits and the views that follow them."""

    shape: torch.Size | list[torch.Size]
    node_list: list[fx.Node]
    inputs: list[fx.Node]
    wait_nodes: list[fx.Node]
    comm_node: fx.Node
    outputs: OrderedSet[fx.Node]


def get_comm_block(comm_node: fx.Node) -> CommBlock | None:
    """The block around a collective, or None where its result is not waited for as it should be."""
    block = ir.get_comm_block(comm_node)
    if isinstance(block, Refusal):
        LOGGER.debug("%s", block)
        return None
    waits = list(block.waits)
    received = [result.value for result in block.collective.results if result.value is not comm_node]
    first = [comm_node, *received, *waits]
    shapes = [tensor.shape for node in block.inputs for tensor in metadata.tensors_of(node)]
    return CommBlock(
        shape=shapes if block.collective.spec.coalesced else shapes[0],
        node_list=first + [node for node in block.nodes if node not in first],
        inputs=list(block.inputs),
        wait_nodes=waits,
        comm_node=comm_node,
        outputs=OrderedSet(block.outputs),
    )


def get_all_comm_blocks(
    graph: fx.Graph,
    comm_ops: tuple[torch._ops.OpOverload, ...],
    comm_filter: Callable[..., bool] | None = None,
) -> list[CommBlock]:
    """The blocks of these operators that the filter accepts, in graph order."""
    blocks = (get_comm_block(node) for node in graph.nodes if node.target in comm_ops)
    return [block for block in blocks if block is not None and (comm_filter is None or comm_filter(block))]


class _Emit(GraphEmit):
    """Flattens by the operator that inductor's pass emits."""

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        if target is ATEN.reshape.default and args[1:] == ([-1],):
            return super().__call__(ATEN.flatten.using_ints, args[0])
        return super().__call__(target, *args, **kwargs)


def fuse_ddp_with_coalesced_op(graph: fx.Graph, bucket_size_mb: int) -> None:
    """Fuse gradient all-reduces into `all_reduce_coalesced`; the first bucket has 1 MB, the others `bucket_size_mb`."""
    _fuse(graph, bucket_size_mb, FusionMethod.COALESCED)


def fuse_ddp_with_concat_op(graph: fx.Graph, bucket_size_mb: int) -> None:
    """Fuse gradient all-reduces by concatenation; the first bucket has 1 MB, the others `bucket_size_mb`."""
    _fuse(graph, bucket_size_mb, FusionMethod.CONCAT)


@without_collection()
def _fuse(graph: fx.Graph, bucket_size_mb: int, method: FusionMethod) -> None:
    editor = GraphEditor(graph)
    plan = FuseDdp(cap_mb=float(bucket_size_mb), method=method).plan(ordered_view(editor))
    for start, refusal in (*plan.refused, *plan.alone):
        LOGGER.debug("%s is left alone: %s", start.name, refusal)
    number = len(plan.buckets) + len(plan.alone)
    if not number:
        return
    counters["inductor"]["ddp_buckets"] = number
    try:
        refused = fuse(editor, [planned.gradients for planned in plan.buckets], method, emitter=_Emit)
    except CounterpointError as error:
        # The graph is as it was; a compile must not fail because an optimisation did not apply.
        LOGGER.warning("gradients are not fused: %s", error)
        return
    for start, refusal in refused.items():
        LOGGER.warning("%s is left alone: %s", start.name, refusal)


def schedule_comm_wait(graph: fx.Graph) -> None:
    """Delay every wait, with the views that follow it, to just before its first use."""
    editor = GraphEditor(graph)
    delay_waits(editor, ordered_view(editor))


def fuse_ddp_communication(graph: fx.Graph, passes: list[Callable[..., None] | str], bucket_size_mb: int) -> None:
    """Run the passes, given as functions or as names of functions here, on the graph."""
    for number, given in enumerate(passes):
        run = _NAMED.get(given) if isinstance(given, str) else given
        if run is None:
            raise OptionError(
                f"there is no DDP fusion pass {given!r}",
                where="fuse_ddp_communication",
                next_step=f"use one of {', '.join(_NAMED)}, or pass a function",
            )
        takes_size = "bucket_size_mb" in inspect.signature(run).parameters
        # The observer takes a graph without a module for one that nobody watches.
        module = cast(fx.GraphModule, graph.owning_module)
        with GraphTransformObserver(module, f"fuse_ddp_communication_pass_{number}"):
            run(graph, bucket_size_mb=bucket_size_mb) if takes_size else run(graph)


_NAMED: dict[str, Callable[..., None]] = {
    "fuse_ddp_with_coalesced_op": fuse_ddp_with_coalesced_op,
    "fuse_ddp_with_concat_op": fuse_ddp_with_concat_op,
    "schedule_comm_wait": schedule_comm_wait,
}
