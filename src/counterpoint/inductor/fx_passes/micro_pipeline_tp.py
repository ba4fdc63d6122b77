"""The names of `torch._inductor.fx_passes.micro_pipeline_tp` as in torch 2.13, thin over `micro-pipeline-tp`.

    from counterpoint.inductor.fx_passes.micro_pipeline_tp import micro_pipeline_tp_pass

Signatures and match records are inductor's, and so are the operators: where symmetric memory is enabled for the group
of CUDA tensors, or torch's `_symmetric_memory._test_mode()` is on, what inductor would fuse becomes the same
`symm_mem.fused_*` call. Whatever it would leave behind - bias, bmm, a cast or a reshape in between, the gathered tensor
on the right, a sum of matmuls, matmul and all-reduce, groups without symmetric memory - becomes an operator of ours.

What differs is what goes wrong there: pieces that are permuted, partial or of unequal size are no gather; reductions
other than sum and avg are left alone, since the operators refuse them at run time; a scale stays with its own matmul; a
row-scaled product that torch's operator would scatter along another dimension than asked for becomes ours; results
keep their strides, new nodes have values, and the cost is linear. Names that are not defined here are inductor's own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._inductor import config
from torch._inductor.fx_passes import micro_pipeline_tp as _inductors
from torch._inductor.pattern_matcher import Match
from torch.utils._ordered_set import OrderedSet

from counterpoint.errors import CounterpointError
from counterpoint.inductor.fx_passes import micro_pipeline_hiding as _hiding
from counterpoint.inductor.fx_passes.micro_pipeline_fused import write_plan
from counterpoint.inductor.fx_passes.order import ordered_view, put_in_order
from counterpoint.ir import metadata, ops
from counterpoint.ir.edit import GraphEditor
from counterpoint.ir.ops import Kind
from counterpoint.ir.reason import Refusal
from counterpoint.passes.micro_pipeline.gathers import read_ordered, wait_of
from counterpoint.passes.micro_pipeline.plans import plan_graph
from counterpoint.passes.micro_pipeline.rewrite import carry_out
from counterpoint.passes.micro_pipeline.scatters import read_sent
from counterpoint.runtime.pipelined import operators  # noqa: F401  what is written can be run

__all__ = [
    "find_all_gather_patterns",
    "find_reduce_scatter_patterns",
    "fuse_all_gather_matmul",
    "fuse_matmul_reduce_scatter",
    "micro_pipeline_tp_pass",
]

log = logging.getLogger("counterpoint.micro_pipeline_tp")
GroupName = str


def __getattr__(name: str) -> Any:
    return getattr(_inductors, name)


# -- matches ----------------------------------------------------------------------------------------------------------


@dataclass
class _AllGatherMatch:
    """An all-gather and what puts its result in order."""

    match: Match | list[fx.Node]
    shard_node: fx.Node
    ag_node: fx.Node
    res_node: fx.Node
    gather_dim: int
    group_name: GroupName

    def replace_with(self, new_node: fx.Node) -> None:
        """Let the new node stand for the gathered tensor."""
        self.res_node.replace_all_uses_with(new_node)

    def erase(self) -> None:
        """Take out what nothing uses any more."""
        _erase(self.match)


@dataclass
class _ReduceScatterMatch:
    """A reduce-scatter and what brings its operand into order."""

    match: Match | list[fx.Node]
    input_node: fx.Node
    reduce_scatter_node: fx.Node
    wait_tensor_node: fx.Node
    reduce_op: str
    scatter_dim: int
    group_name: GroupName

    def replace_with(self, new_node: fx.Node) -> None:
        """Let the new node stand for the result, and for the unwaited one where the graph returns that."""
        self.wait_tensor_node.replace_all_uses_with(new_node)
        self._update_save_for_backward(new_node)

    def _update_save_for_backward(self, new_node: fx.Node) -> None:
        for user in list(self.reduce_scatter_node.users):
            if user.op == "output":
                user.replace_input_with(self.reduce_scatter_node, new_node)

    def erase(self) -> None:
        """Take out what nothing uses any more."""
        _erase(self.match)


def _erase(match: Match | list[fx.Node]) -> None:
    for node in reversed(match.nodes if isinstance(match, Match) else match):
        if not node.users:
            node.graph.erase_node(node)


def _starts(graph: fx.Graph, kind: Kind) -> list[fx.Node]:
    return [node for node in graph.nodes if (spec := ops.spec_of(node.target)) is not None and spec.kind is kind]


def find_all_gather_patterns(graph: fx.Graph) -> list[_AllGatherMatch]:
    """The all-gathers along any dimension, by the place of their results."""
    put_in_order(graph)
    found: list[_AllGatherMatch] = []
    for start in _starts(graph, Kind.ALL_GATHER):
        gather = read_ordered(start)
        if isinstance(gather, Refusal):
            log.debug("%s is left alone: %s", start.name, gather)
            continue
        nodes = [node for node in gather.nodes if node is not gather.shard]
        found.append(_AllGatherMatch(nodes, gather.shard, start, gather.result, gather.dim, gather.group))
    return sorted(found, key=lambda match: match.res_node)


def find_reduce_scatter_patterns(graph: fx.Graph) -> list[_ReduceScatterMatch]:
    """The reduce-scatters along any dimension, by the place of their results."""
    put_in_order(graph)
    found: list[_ReduceScatterMatch] = []
    for start in _starts(graph, Kind.REDUCE_SCATTER):
        sent = read_sent(start)
        if isinstance(sent, Refusal):
            log.debug("%s is left alone: %s", start.name, sent)
            continue
        wait, group = wait_of(start), ops.argument(start, "group_name")
        nodes = [*sent.nodes, start, wait]
        reduce_op = ops.reduce_op_of(start) or "sum"
        found.append(_ReduceScatterMatch(nodes, sent.source, start, wait, reduce_op, sent.dim, group))
    return sorted(found, key=lambda match: match.wait_tensor_node)


# -- rewrites ---------------------------------------------------------------------------------------------------------


def fuse_all_gather_matmul(all_gather: _AllGatherMatch) -> None:
    """Let the matmuls of the gathered tensor run while it arrives."""
    _fuse(all_gather.ag_node.graph, {all_gather.ag_node})


def fuse_matmul_reduce_scatter(reduce_scatter: _ReduceScatterMatch) -> None:
    """Let the parts of a matmul be sent while others are computed."""
    _fuse(reduce_scatter.reduce_scatter_node.graph, {reduce_scatter.reduce_scatter_node})


def _fuse(graph: fx.Graph, starts: Collection[fx.Node]) -> None:
    editor = GraphEditor(graph)
    view = ordered_view(editor)
    planned = plan_graph(view, starts)
    for start, refusal in planned.refused.items():
        log.debug("%s is left alone: %s", start.name, refusal)
    try:
        refusals = carry_out(editor, planned.plans, write_plan)
    except CounterpointError as error:
        # The graph is as it was; a compile must not fail because an optimisation did not apply.
        log.warning("matmuls are not pipelined: %s", error)
        return
    for plan, why in zip(planned.plans, refusals, strict=True):
        if why is not None:
            log.debug("%s is left alone: %s", plan.starts[0].name, why)


def micro_pipeline_tp_pass(graph: fx.Graph) -> None:
    """Pipeline every gather and reduction with its matmuls, but for those that other matmuls hide, where inductor's
    setting `reorder_for_compute_comm_overlap` says that collectives are going to be reordered."""
    starts = {match.ag_node for match in find_all_gather_patterns(graph)}
    starts |= {match.reduce_scatter_node for match in find_reduce_scatter_patterns(graph)}
    for kind in (Kind.ALL_REDUCE, Kind.ALL_TO_ALL):
        starts.update(_starts(graph, kind))
    if config.reorder_for_compute_comm_overlap:
        starts.difference_update(_get_unexposed_collectives(graph))
    if not starts:
        log.warning("async TP found no matching all-gather/reduce-scatter patterns for fusion")
        return
    _fuse(graph, starts)


# -- helpers that others import ---------------------------------------------------------------------------------------


def _get_tensor(node: fx.Node) -> torch.Tensor:
    """The value of a node."""
    return metadata.tensor_of(node)


def _find_ancestors(node: fx.Node) -> OrderedSet[fx.Node]:
    """The node and what it is computed from, without the inputs of the graph."""
    return _hiding.find_ancestors(node)


def _get_node_to_ancestors(graph: fx.Graph) -> dict[fx.Node, OrderedSet[fx.Node]]:
    """What each node is computed from."""
    return _hiding.node_to_ancestors(graph)


def _get_collective_to_overlappable_nodes(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each gather and reduce-scatter the calls that are neither needed by it nor need it."""
    return _hiding.collective_to_overlappable_nodes(graph)


def _get_unexposed_collectives(graph: fx.Graph) -> list[fx.Node]:
    """The collectives that a matmul beside them hides; every matmul hides one."""
    return _hiding.unexposed_collectives(graph)
