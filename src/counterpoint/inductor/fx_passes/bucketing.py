"""The names of `torch._inductor.fx_passes.bucketing` as in torch 2.13, thin over our planner, bodies and editor.

    from counterpoint.inductor.fx_passes.bucketing import bucket_all_gather

Signatures and emitted operators are inductor's. What differs is what goes wrong or is missed there:

- collectives need not be neighbours, a member that depends on a bucket goes into the next one, and no set of buckets
  closes a cycle; the cap is asked for every bucket; the result is in order, and needs no sorting behind;
- in-place all-reduces, arguments by keyword, several devices, unknown sizes, two waits, mutation between collectives
  and two nodes with one fake tensor are merged rightly or left alone, with the reason in the log
  `counterpoint.bucketing`;
- gathers of several element types are packed as bytes where elements would lie at odd addresses;
- the waits of a bucket stay where the first old one stood, so that compute in between still hides the transfer;
- what came from where is noted once a bucket, not once a node.

Functions are looked up in this module when they are needed, so replacing one of them here works as it does there. Names
that are not defined here are inductor's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch._inductor.fx_passes import bucketing as _inductors
from torch._logging._internal import trace_structured
from torch.fx import Node

from counterpoint._torch import process_group_ranks
from counterpoint.errors import OptionError
from counterpoint.inductor.fx_passes import bucketing_bodies as _bodies
from counterpoint.inductor.fx_passes.bucketing_merge import Merged, Planned, Work, group_argument, merge_all
from counterpoint.inductor.fx_passes.bucketing_reading import (
    BucketMode,
    bucket_key,
    collect_node_descendants,
    get_collective_type,
    get_full_bucket_key,
    has_mergeable_all_gather_convert_dtype,
    is_all_gather_into_tensor,
    is_all_reduce_tensor,
    is_all_to_all_tensor,
    is_any_all_reduce,
    is_fsdp_all_gather,
    is_fsdp_reduce_scatter,
    is_reduce_scatter_tensor,
    is_wait_tensor,
    is_wait_tensor_from_all_gather_into_tensor,
)
from counterpoint.inductor.fx_passes.order import ordered_view
from counterpoint.ir import metadata, ops
from counterpoint.ir.collection import without_collection
from counterpoint.ir.edit import GraphEditor
from counterpoint.ir.reason import Refusal
from counterpoint.passes.bucket_plan import BucketRules, Key, Member, plan_members, read_member

__all__ = [
    "BucketMode",
    "all_gather_merge_fn_to_trace",
    "all_gather_merge_fn_to_trace_custom_ops",
    "all_gather_merge_fn_to_trace_functional",
    "all_reduce_merge_fn_to_trace",
    "bucket_all_gather",
    "bucket_all_gather_by_mb",
    "bucket_all_reduce",
    "bucket_all_reduce_by_mb",
    "bucket_cap_mb_by_bucket_idx_default",
    "bucket_key",
    "bucket_reduce_scatter",
    "bucket_reduce_scatter_by_mb",
    "collect_node_descendants",
    "get_collective_type",
    "get_full_bucket_key",
    "greedy_bucket_collective_by_mb",
    "has_mergeable_all_gather_convert_dtype",
    "is_all_gather_into_tensor",
    "is_all_reduce_tensor",
    "is_all_to_all_tensor",
    "is_fsdp_all_gather",
    "is_fsdp_reduce_scatter",
    "is_reduce_scatter_tensor",
    "is_wait_tensor",
    "is_wait_tensor_from_all_gather_into_tensor",
    "merge_all_gather",
    "merge_all_gather_bucket",
    "merge_all_reduce_bucket",
    "merge_reduce_scatter",
    "merge_reduce_scatter_bucket",
    "pick_bucket_dtype",
    "process_collective_bucket",
    "reduce_scatter_merge_fn_coalesced",
    "reduce_scatter_merge_fn_to_trace",
    "reduce_scatter_merge_fn_to_trace_custom_ops",
]

LOGGER = logging.getLogger("counterpoint.bucketing")
MB = 1024 * 1024
Cap = Callable[[int], float]


def __getattr__(name: str) -> Any:
    return getattr(_inductors, name)


# -- what to merge ----------------------------------------------------------------------------------------------------


def pick_bucket_dtype(dtypes: list[torch.dtype]) -> torch.dtype:
    """The element type with the fewest bytes, in units of which all the others can be counted."""
    if not dtypes:
        raise OptionError("no element type is given", where="pick_bucket_dtype", next_step="pass at least one")
    return min(dtypes, key=lambda dtype: dtype.itemsize)


def bucket_cap_mb_by_bucket_idx_default(bucket_id: int) -> float:
    """The cap of the n-th bucket, in MB."""
    return 2000.0


@without_collection()
def greedy_bucket_collective_by_mb(
    gm: fx.GraphModule,
    bucket_cap_mb_by_bucket_idx: Callable[[int], float],
    filter_node: Callable[[fx.Node], bool],
    node_group_key: Callable[[fx.Node], Any],
    filter_wait_node: Callable[[fx.Node], bool] | None = None,
) -> list[list[fx.Node]]:
    """Buckets of two or more of the nodes that the filters accept, of equal key, each up to its cap.

    Whatever the key, only what can share a collective does: one group, reduction and device.
    """
    if not any(filter_node(node) for node in gm.graph.nodes):
        return []
    editor = GraphEditor(gm.graph)
    view = ordered_view(editor)
    starts = (start for start in view.starts if filter_node(start))
    members = {start: member for start in starts if (member := _member(start, filter_wait_node)) is not None}
    keys: dict[tuple[Key, Any], Key] = {}
    labelled = []
    for start, member in members.items():
        told = member.key, node_group_key(start)
        key = keys.get(told) or keys.setdefault(told, replace(told[0], label=told[1]))
        labelled.append(Member(member.block, key, member.nbytes))
    rules = BucketRules(kinds=frozenset(), cap_bytes=lambda index: int(bucket_cap_mb_by_bucket_idx(index) * MB))
    plan = plan_members(labelled, view.merges(), rules)
    for start, refusal in plan.refusals:
        LOGGER.debug("%s is left alone: %s", start.name, refusal)
    return Planned(plan.buckets, members, editor, view)


def _member(start: Node, filter_wait_node: Callable[[Node], bool] | None) -> Member | None:
    member = read_member(start, multi_dtype=True)
    if isinstance(member, Refusal):
        LOGGER.debug("%s is left alone: %s", start.name, member)
        return None
    return member if filter_wait_node is None or filter_wait_node(member.wait) else None


def bucket_all_gather_by_mb(
    gm: fx.GraphModule,
    bucket_cap_mb_by_bucket_idx: Callable[[int], float],
    filter_wait_node: Callable[[fx.Node], bool] | None = None,
    mode: BucketMode | None = None,
) -> list[list[fx.Node]]:
    """The buckets of all-gathers; element types may mix in mode custom_ops_multidtype."""
    mode = mode or _default_mode()
    return greedy_bucket_collective_by_mb(
        gm, bucket_cap_mb_by_bucket_idx, is_all_gather_into_tensor, lambda n: bucket_key(n, mode), filter_wait_node
    )


def bucket_reduce_scatter_by_mb(
    gm: fx.GraphModule,
    bucket_cap_mb_by_bucket_idx: Callable[[int], float],
    filter_wait_node: Callable[[fx.Node], bool] | None = None,
    mode: BucketMode | None = None,
) -> list[list[fx.Node]]:
    """The buckets of reduce-scatters."""
    mode = mode or _default_mode()
    if "multidtype" in mode:
        raise OptionError(
            f"reduce-scatters of several element types cannot share a bucket, as mode {mode!r} asks",
            where="bucket_reduce_scatter_by_mb",
            next_step='use mode "custom_ops"',
        )
    return greedy_bucket_collective_by_mb(
        gm, bucket_cap_mb_by_bucket_idx, is_reduce_scatter_tensor, bucket_key, filter_wait_node
    )


def bucket_all_reduce_by_mb(
    gm: fx.GraphModule,
    bucket_cap_mb_by_bucket_idx: Callable[[int], float],
    filter_wait_node: Callable[[fx.Node], bool] | None = None,
) -> list[list[fx.Node]]:
    """The buckets of all-reduces, in-place ones too."""
    return greedy_bucket_collective_by_mb(
        gm, bucket_cap_mb_by_bucket_idx, is_any_all_reduce, bucket_key, filter_wait_node
    )


def bucket_all_gather(
    gm: fx.GraphModule,
    bucket_cap_mb_by_bucket_idx: Callable[[int], float] | None = None,
    mode: BucketMode | None = None,
) -> None:
    """Merge all-gathers into buckets."""
    mode = mode or _default_mode()
    cap = bucket_cap_mb_by_bucket_idx or bucket_cap_mb_by_bucket_idx_default
    buckets = bucket_all_gather_by_mb(gm, cap, None, mode)
    if buckets:
        merge_all_gather(gm, buckets, mode)


def bucket_reduce_scatter(
    gm: fx.GraphModule,
    bucket_cap_mb_by_bucket_idx: Callable[[int], float] | None = None,
    mode: BucketMode | None = None,
) -> None:
    """Merge reduce-scatters into buckets."""
    mode = mode or _default_mode()
    cap = bucket_cap_mb_by_bucket_idx or bucket_cap_mb_by_bucket_idx_default
    buckets = bucket_reduce_scatter_by_mb(gm, cap, None, mode)
    if buckets:
        merge_reduce_scatter(gm, buckets, mode)


def bucket_all_reduce(
    gm: fx.GraphModule,
    bucket_cap_mb_by_bucket_idx: Callable[[int], float] | None = None,
    mode: str | None = None,
) -> None:
    """Merge all-reduces into buckets. There is one mode."""
    cap = bucket_cap_mb_by_bucket_idx or bucket_cap_mb_by_bucket_idx_default
    buckets = bucket_all_reduce_by_mb(gm, cap)
    if buckets:
        merge_all(gm.graph, [_all_reduce_work(bucket) for bucket in buckets], buckets)


def _default_mode() -> BucketMode:
    # A setting from torch 2.12 on.
    chosen: Callable[[], BucketMode] = getattr(_inductors, "_default_bucket_mode", lambda: "default")
    return chosen()


# -- merging ----------------------------------------------------------------------------------------------------------


def process_collective_bucket(
    g: fx.Graph,
    bucket_nodes: list[fx.Node],
    fn_to_trace: Callable[..., list[torch.Tensor]],
    trace_args_fn: Callable[[list[fx.Node]], tuple[Any, ...]],
    insert_before: fx.Node | None = None,
    wait_insertion_point: fx.Node | None = None,
    extra_graph_inps: list[fx.Node] | None = None,
    input_transform: Callable[[fx.Node], fx.Node] | None = None,
) -> tuple[list[fx.Node], dict[fx.Node, fx.Node]]:
    """Let what a function does stand for these collectives.

    The function is called with what `trace_args_fn` makes of the nodes that are packed, their tensors first;
    `input_transform` names another node for one that would be packed. Returns the new nodes, and the new result for
    each old wait: nothing where the bucket cannot be merged and is left alone.
    """
    work = _work(bucket_nodes, fn_to_trace, trace_args_fn, insert_before, wait_insertion_point, extra_graph_inps or ())
    (merged,) = merge_all(g, [replace(work, transform=input_transform)])
    return merged


def merge_all_gather_bucket(
    g: fx.Graph,
    ag_nodes: list[fx.Node],
    mode: BucketMode | None = None,
    insert_before: fx.Node | None = None,
    wait_insertion_point: fx.Node | None = None,
) -> tuple[list[fx.Node], dict[fx.Node, fx.Node]]:
    """Let one all-gather stand for these; see `process_collective_bucket`."""
    return _merged(g, _all_gather_work(ag_nodes, mode or _default_mode(), insert_before, wait_insertion_point))


def merge_reduce_scatter_bucket(
    g: fx.Graph,
    rs_nodes: list[fx.Node],
    mode: BucketMode | None = None,
    insert_before: fx.Node | None = None,
    wait_insertion_point: fx.Node | None = None,
) -> tuple[list[fx.Node], dict[fx.Node, fx.Node]]:
    """Let one reduce-scatter stand for these; see `process_collective_bucket`."""
    return _merged(g, _reduce_scatter_work(rs_nodes, mode or _default_mode(), insert_before, wait_insertion_point))


def merge_all_reduce_bucket(
    g: fx.Graph,
    ar_nodes: list[fx.Node],
    mode: str | None = None,
    insert_before: fx.Node | None = None,
    wait_insertion_point: fx.Node | None = None,
) -> tuple[list[fx.Node], dict[fx.Node, fx.Node]]:
    """Let one all-reduce stand for these; see `process_collective_bucket`."""
    return _merged(g, _all_reduce_work(ar_nodes, insert_before, wait_insertion_point))


def merge_all_gather(gm: fx.GraphModule, ag_buckets: list[list[fx.Node]], mode: BucketMode | None = None) -> None:
    """Let one all-gather stand for each of these buckets."""
    _note("fx_bucketing_passes_all_gather_buckets", ag_buckets)
    chosen = mode or _default_mode()
    merge_all(gm.graph, [_all_gather_work(bucket, chosen) for bucket in ag_buckets], ag_buckets)


def merge_reduce_scatter(gm: fx.GraphModule, rs_buckets: list[list[fx.Node]], mode: BucketMode | None = None) -> None:
    """Let one reduce-scatter stand for each of these buckets."""
    _note("fx_bucketing_passes_reduce_scatter_buckets", rs_buckets)
    chosen = mode or _default_mode()
    merge_all(gm.graph, [_reduce_scatter_work(bucket, chosen) for bucket in rs_buckets], rs_buckets)


def _merged(graph: fx.Graph, work: Work) -> Merged:
    (merged,) = merge_all(graph, [work])
    return merged


def _note(name: str, buckets: list[list[Node]]) -> None:
    """The artifact that inductor leaves for tools that read its trace."""
    trace_structured("artifact", lambda: {"name": name, "encoding": "string"}, payload_fn=lambda: str(buckets))


def _work(
    starts: Sequence[Node],
    function: Callable[..., list[torch.Tensor]],
    arguments: Callable[[list[Node]], tuple[Any, ...]],
    before: Node | None,
    wait_before: Node | None,
    extra: Sequence[Node],
) -> Work:
    """A function that somebody has put in the place of ours is traced; what ours do is known."""
    body = _BODIES.get(function)
    return Work(starts, function, arguments, body, before, wait_before, extra)


def _all_reduce_work(starts: Sequence[Node], before: Node | None = None, wait_before: Node | None = None) -> Work:
    group, _, extra = group_argument(starts[0])
    value = metadata.tensor_of(starts[0])

    def arguments(packed: list[Node]) -> tuple[Any, ...]:
        return [node.meta["val"] for node in packed], group, ops.reduce_op_of(starts[0]), value.dtype, value.device

    return _work(starts, all_reduce_merge_fn_to_trace, arguments, before, wait_before, extra)


def _reduce_scatter_work(
    starts: Sequence[Node], mode: BucketMode, before: Node | None = None, wait_before: Node | None = None
) -> Work:
    group, _, extra = group_argument(starts[0])
    value, ranks = metadata.tensor_of(starts[0]), ops.argument(starts[0], "group_size")
    function = reduce_scatter_merge_fn_to_trace
    if mode == "coalesced":
        function = reduce_scatter_merge_fn_coalesced
    elif "custom_ops" in mode:
        function = reduce_scatter_merge_fn_to_trace_custom_ops

    def arguments(packed: list[Node]) -> tuple[Any, ...]:
        tensors, op = [node.meta["val"] for node in packed], ops.reduce_op_of(starts[0])
        return tensors, group, ranks, op, value.dtype, value.device

    return _work(starts, function, arguments, before, wait_before, extra)


def _all_gather_work(
    starts: Sequence[Node], mode: BucketMode, before: Node | None = None, wait_before: Node | None = None
) -> Work:
    group, name, extra = group_argument(starts[0])
    ranks, rank = ops.argument(starts[0], "group_size"), _rank_in(name)
    # Without a process group nobody knows the rank, and only the form without it can be written.
    function: Callable[..., list[torch.Tensor]] = all_gather_merge_fn_to_trace_functional
    if rank is not None:
        custom = "custom_ops" in mode
        function = all_gather_merge_fn_to_trace_custom_ops if custom else all_gather_merge_fn_to_trace

    def arguments(packed: list[Node]) -> tuple[Any, ...]:
        dtypes = [metadata.tensor_of(start).dtype for start in starts]
        return [node.meta["val"] for node in packed], group, ranks, pick_bucket_dtype(dtypes), dtypes, rank

    return _work(starts, function, arguments, before, wait_before, extra)


def _rank_in(name: str | None) -> int | None:
    try:
        return process_group_ranks(name).index(dist.get_rank()) if name is not None else None
    except (LookupError, ValueError):
        LOGGER.debug("no process group is named %s here, so gathers are written without the rank", name)
        return None


# -- what a merged collective consists of -----------------------------------------------------------------------------


def all_reduce_merge_fn_to_trace(
    ar_ins: list[torch.Tensor], group_name: Any, reduce_op: str, reduce_dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    """One all-reduce of all tensors side by side."""
    return _bodies.run(_bodies.all_reduce, ar_ins, group_name, reduce_op, reduce_dtype, device)


def reduce_scatter_merge_fn_to_trace(
    rs_ins: list[torch.Tensor],
    group_name: Any,
    group_size: int,
    reduce_op: str,
    reduce_dtype: torch.dtype,
    device: torch.device,
) -> list[torch.Tensor]:
    """One reduce-scatter of all tensors, row by row side by side."""
    return _bodies.run(_bodies.reduce_scatter, rs_ins, group_name, group_size, reduce_op, reduce_dtype, device)


def reduce_scatter_merge_fn_to_trace_custom_ops(
    rs_ins: list[torch.Tensor],
    group_name: Any,
    group_size: int,
    reduce_op: str,
    reduce_dtype: torch.dtype,
    device: torch.device,
    rs_input_shapes: list[torch.Size] | None = None,
    unpadded_input_indices: list[int] | None = None,
) -> list[torch.Tensor]:
    """One reduce-scatter of all tensors, packed by one operator. The last two arguments are of torch 2.15."""
    rest = group_name, group_size, reduce_op, reduce_dtype, device
    if rs_input_shapes is not None or unpadded_input_indices:
        function: Any = _inductors.reduce_scatter_merge_fn_to_trace_custom_ops
        result: list[torch.Tensor] = function(rs_ins, *rest, rs_input_shapes, unpadded_input_indices)
        return result
    return _bodies.run(_bodies.reduce_scatter_custom_ops, rs_ins, *rest)


def reduce_scatter_merge_fn_coalesced(
    rs_ins: list[torch.Tensor],
    group_name: Any,
    group_size: int,
    reduce_op: str,
    reduce_dtype: torch.dtype,
    device: torch.device,
) -> list[torch.Tensor]:
    """One coalesced reduce-scatter, which packs nothing."""
    rest = group_name, group_size, reduce_op, reduce_dtype, device
    return _bodies.run(_bodies.reduce_scatter_coalesced, rs_ins, *rest)


def all_gather_merge_fn_to_trace(
    ag_ins: list[torch.Tensor],
    group_name: Any,
    group_size: int,
    dtype: torch.dtype,
    out_dtypes: list[torch.dtype],
    rank: int,
) -> list[torch.Tensor]:
    """One all-gather, of what is written into this rank's part of the result."""
    return _bodies.run(_bodies.all_gather, ag_ins, group_name, group_size, dtype, out_dtypes, rank)


def all_gather_merge_fn_to_trace_custom_ops(
    _ag_ins: list[torch.Tensor],
    group_name: Any,
    group_size: int,
    dtype: torch.dtype,
    out_dtypes: list[torch.dtype],
    rank: int,
) -> list[torch.Tensor]:
    """One all-gather, packed and converted by one operator."""
    return _bodies.run(_bodies.all_gather_custom_ops, _ag_ins, group_name, group_size, dtype, out_dtypes, rank)


def all_gather_merge_fn_to_trace_functional(
    ag_ins: list[torch.Tensor],
    group_name: Any,
    group_size: int,
    dtype: torch.dtype,
    out_dtypes: list[torch.dtype],
    rank: int,
    use_fsdp_ag_copy_in: bool = False,
) -> list[torch.Tensor]:
    """One all-gather that overwrites nothing but its result."""
    rest = group_name, group_size, dtype, out_dtypes, rank, use_fsdp_ag_copy_in
    return _bodies.run(_bodies.all_gather_functional, ag_ins, *rest)


_BODIES: dict[Callable[..., list[torch.Tensor]], _bodies.Body] = {
    all_reduce_merge_fn_to_trace: _bodies.all_reduce,
    reduce_scatter_merge_fn_to_trace: _bodies.reduce_scatter,
    reduce_scatter_merge_fn_to_trace_custom_ops: _bodies.reduce_scatter_custom_ops,
    reduce_scatter_merge_fn_coalesced: _bodies.reduce_scatter_coalesced,
    all_gather_merge_fn_to_trace: _bodies.all_gather,
    all_gather_merge_fn_to_trace_custom_ops: _bodies.all_gather_custom_ops,
    all_gather_merge_fn_to_trace_functional: _bodies.all_gather_functional,
}
