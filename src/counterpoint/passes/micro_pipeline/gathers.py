"""All-gathers as matmuls see them: the collective, what puts its result in order, and what can be done before it.

wait(all_gather(x))                          along dim 0
cat(split(wait(all_gather(x)), x0, 0), d)    along dim d; slices as well
view(...)                                    where turning the order costs nothing, as with a batch of one
view.dtype(..., f32)                         of a tensor that travels as bytes
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from counterpoint._torch import OpOverload
from counterpoint.ir import effects, metadata, ops
from counterpoint.ir.collective import get_comm_block
from counterpoint.ir.effects import Effect
from counterpoint.ir.ops import Form, Kind
from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.passes.cast_folding import is_cast
from counterpoint.passes.micro_pipeline.axes import (
    Axes,
    after,
    flattened,
    is_view,
    moved_ranks,
    ranks_dim,
    shape_of,
    side_by_side,
)
from counterpoint.passes.micro_pipeline.pieces import BYTES, SLICES, SPLITS, is_join, pieces_of

ITSELF = frozenset({torch.ops.aten.detach.default, torch.ops.aten.alias.default})


@dataclass(frozen=True)
class Gather:
    """An all-gather whose result is one tensor."""

    start: Node
    wait: Node
    shard: Node
    """What every rank gives, in its own element type."""
    ranks: int
    group: str
    result: Node
    """The gathered tensor, after what puts it in order and what is done to every element."""
    axes: Axes
    """Of the result."""
    nodes: tuple[Node, ...]
    """Everything that computes the result from the shard."""
    hoisted: tuple[Node, ...] = ()
    """Elementwise operators among `nodes`, in order, that can as well be applied to the shard."""

    @property
    def dim(self) -> int:
        """The dimension of the result along which the ranks' parts stand side by side."""
        return ranks_dim(self.axes)


def read_gather(start: Node) -> Gather | Refusal:
    """The gather that a start begins, or why it is none that a matmul can take over."""
    ordered = read_ordered(start)
    return ordered if isinstance(ordered, Refusal) or is_returned(start) else _hoisting(ordered)


def read_ordered(start: Node) -> Gather | Refusal:
    """The same up to the node that holds the ranks' parts in order, without what is done to the elements."""
    refusal = refuse_form(start, Kind.ALL_GATHER)
    if refusal is not None:
        return refusal
    wait = wait_of(start)
    ranks, group = ops.argument(start, "group_size"), ops.argument(start, "group_name")
    sent: Node = ops.argument(start, "input")
    shape = shape_of(sent)
    if not shape or 0 in shape or ranks < 2:
        return Refusal("gather-form", start.name, f"shape {list(shape)} over {ranks} ranks")
    found = Gather(start, wait, sent, ranks, group, wait, side_by_side(shape, ranks), (start, wait))
    return _in_order(found, _read_as_bytes(sent))


def _read_as_bytes(sent: Node) -> Node | None:
    """The tensor that is sent as another element type, detached as tracing leaves it; None for no such."""
    while sent.target in ITSELF:
        (sent,) = sent.all_input_nodes
    if sent.target is not BYTES:
        return None
    original: Node = ops.argument(sent, "self")
    return original if metadata.tensor_of(original).dtype is not metadata.tensor_of(sent).dtype else None


def wait_of(start: Node) -> Node:
    """The wait of a start that `refuse_form` accepts."""
    return next(user for user in start.users if ops.is_wait(user))


def is_returned(start: Node) -> bool:
    """Whether the graph returns the result as it is before the wait, to be waited for by another graph."""
    return any(user.op == "output" for user in start.users)


def refuse_overwritten(matmul: Node, wait: Node, among: Iterable[Node], view: GraphView) -> Refusal | None:
    """Why a matmul of these views of what was waited for cannot read what the collective brings instead."""
    for node in among:
        writer = next((other for other in view.hazards.writers(node) if other is not wait and other < matmul), None)
        if writer is not None:
            return Refusal("result-overwritten", matmul.name, f"{writer.name} writes into {node.name}")
    return None


def refuse_form(start: Node, kind: Kind) -> Refusal | None:
    """Why a start is not the plain form of the collective with one wait; None where it is."""
    spec = ops.spec_of(start.target)
    if spec is None or spec.kind is not kind:
        return Refusal("not-a-collective", start.name, f"no {kind.value}")
    if spec.coalesced or spec.form is not Form.FUNCTIONAL or not spec.waits:
        return Refusal("pipeline-form", start.name, spec.name)
    readers = [user for user in start.users if user.op != "output"]
    if len(readers) == 1 and ops.is_wait(readers[0]) and metadata.has_value(start):
        return None if isinstance(ops.argument(start, "group_name"), str) else _computed_group(start)
    block = get_comm_block(start)
    return block if isinstance(block, Refusal) else Refusal("pipeline-form", start.name, f"{len(start.users)} users")


def _computed_group(start: Node) -> Refusal:
    return Refusal("pipeline-form", start.name, "the graph computes its group")


# -- what puts the result in order ------------------------------------------------------------------------------------


def _in_order(found: Gather, original: Node | None) -> Gather | Refusal:
    """The gather up to the node that holds the ranks' parts along the right dimension, in the shard's element type."""
    join = _join_behind(found.wait)
    if is_returned(found.start) and (join is not None or original is not None):
        return Refusal("pieces", found.start.name, "it is also returned as it came")
    if join is None:
        return _as_original(found, original, read=False)
    pieces = pieces_of(join)
    if isinstance(pieces, str):
        return Refusal("pieces", join.name, pieces)
    if pieces.source is not found.wait or pieces.cut_dim != 0 or pieces.number != found.ranks:
        return Refusal("pieces", join.name, f"{pieces.number} along dim {pieces.cut_dim} of {pieces.source.name}")
    cuts = {n for n in pieces.nodes if n.target in SPLITS or n.target in SLICES}
    others = [user.name for user in found.wait.users if user not in cuts]
    if others:
        return Refusal("pieces", found.wait.name, f"also used as a whole by {', '.join(others)}")
    axes = moved_ranks(found.axes, pieces.joined_dim)
    if axes is None:
        return Refusal("pieces", join.name, "the ranks' parts do not stand in front")
    moved = replace(found, result=join, axes=axes, nodes=(*found.nodes, *pieces.nodes))
    # Some element types cannot be joined: pieces of them are read as bytes, and all together as what they are again.
    itself = found.shard if pieces.through_bytes and original is None else original
    return _as_original(moved, itself, pieces.through_bytes)


def _join_behind(wait: Node) -> Node | None:
    """The `cat` that pieces of the result flow into, if they do."""
    for user in wait.users:
        pieces = list(user.users) if user.target in SPLITS else [user] if user.target in SLICES else []
        for piece in pieces:
            for last in (piece, *(reader for reader in piece.users if reader.target is BYTES)):
                join = next((reader for reader in last.users if is_join(reader)), None)
                if join is not None:
                    return join
    return None


def _as_original(found: Gather, original: Node | None, read: bool) -> Gather | Refusal:
    """A tensor that travels as bytes, read again as what it is; `read` says that its pieces have been."""
    dtype = metadata.tensor_of(found.result).dtype
    if original is None:
        return Refusal("pieces", found.result.name, "its pieces change their element type") if read else found
    wanted = metadata.tensor_of(original)
    result, extra = found.result, tuple[Node, ...]()
    readers = [user for user in result.users if user.target is BYTES]
    if len(readers) == 1 and len(result.users) == 1 and metadata.tensor_of(readers[0]).dtype is wanted.dtype:
        (result,) = extra = (readers[0],)
    elif dtype is not wanted.dtype and original is found.shard:
        return Refusal("pieces", result.name, "its pieces change their element type")
    elif dtype is not wanted.dtype:
        # Who works with the bytes themselves gets them.
        return found
    axes = side_by_side(shape_of(original), found.ranks)
    moved = moved_ranks(axes, found.dim) if found.dim else axes
    if moved is None:
        return Refusal("pieces", result.name, "the ranks' parts do not stand in front")
    # The conversion of the shard to bytes goes too where nobody else uses it.
    sent = _down_to(original, found.shard)
    return replace(found, shard=original, result=result, axes=moved, nodes=(*sent, *found.nodes, *extra))


def _down_to(original: Node, node: Node) -> Iterator[Node]:
    while node is not original:
        yield node
        (node,) = node.all_input_nodes


# -- what can be done before -------------------------------------------------------------------------------------------


def _hoisting(found: Gather) -> Gather:
    """The gather with the elementwise operators behind it that may as well come before it."""
    step = _next_hoisted(found)
    return found if step is None else _hoisting(step)


def _next_hoisted(found: Gather) -> Gather | None:
    node, axes, passed = found.result, found.axes, list[Node]()
    while len(node.users) == 1:
        (node,) = node.users
        passed.append(node)
        # Before the gather a dimension that a view folds is not folded yet, which only casts do not see.
        if is_hoistable(node) and (len(passed) == 1 or is_cast(node)):
            nodes = (*found.nodes, *passed)
            return replace(found, result=node, axes=axes, nodes=nodes, hoisted=(*found.hoisted, node))
        turned = after(node, axes) if is_view(node) else None
        if turned is None:
            return None
        axes = turned
    return None


def is_hoistable(node: Node) -> bool:
    """Whether the operator treats every element alike, by constants alone, and gives no more bytes than it takes.

    Tensors beside the gathered one may differ between ranks, so what they do to a part depends on the rank.
    """
    if node.op != "call_function" or len(node.all_input_nodes) != 1 or not metadata.has_value(node):
        return False
    made, source = node.meta["val"], node.all_input_nodes[0].meta["val"]
    if not isinstance(made, torch.Tensor) or not isinstance(source, torch.Tensor):
        return False
    if made.dtype.itemsize > source.dtype.itemsize or shape_of(node) != shape_of(node.all_input_nodes[0]):
        return False
    return is_cast(node) or _is_elementwise(node)


def _is_elementwise(node: Node) -> bool:
    if not isinstance(node.target, OpOverload) or effects.effect_of(node) is not Effect.PURE:
        return False
    return torch.Tag.pointwise in node.target.tags and not effects.aliased_nodes(node)


def axes_behind(found: Gather) -> Iterator[tuple[Node, Axes, tuple[Node, ...]]]:
    """Everything that looks at the result through views alone: (node, its axes, the views up to it)."""
    frontier: list[tuple[Node, Axes, tuple[Node, ...]]] = [(found.result, found.axes, ())]
    while frontier:
        node, axes, via = frontier.pop()
        yield node, axes, via
        for user in node.users:
            turned = after(user, axes) if is_view(user) else None
            if turned is not None and any(axis.is_ranks for axis in flattened(turned)):
                frontier.append((user, turned, (*via, user)))
