"""A collective of a graph as a call whose ways can be costed, or why it cannot be lowered otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from counterpoint._torch import FakeTensor, is_constant_sized
from counterpoint.cost.model import CostModel
from counterpoint.cost.ways import Call
from counterpoint.ir import metadata, ops
from counterpoint.ir.collective import CommBlock, get_comm_block
from counterpoint.ir.ops import Form, Kind
from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.passes.base import PassContext

LIBRARY = "_c10d_functional::"
"""Operators that the communication library runs."""
ORDER_FREE = frozenset({"max", "min", "band", "bor", "bxor"})
EXTREMES = (64, 1 << 30)
"""Bytes of a small and of a large tensor: what holds for both is taken to hold for a size that is not known."""


@dataclass(frozen=True)
class Candidate:
    """A collective that may be lowered."""

    block: CommBlock
    call: Call
    group: str
    sized: bool
    """Whether all sizes are known while compiling; if not, `call` is about one of the extremes."""

    @property
    def start(self) -> Node:
        """The start."""
        return self.block.collective.start


def read_candidate(context: PassContext, start: Node) -> Candidate | Refusal:
    """The collective that a node starts, if the library runs it in its functional form."""
    spec = ops.spec_of(start.target)
    if spec is None or not spec.name.startswith(LIBRARY):
        return Refusal("lowered-already", start.name, str(start.target))
    if spec.form is not Form.FUNCTIONAL:
        return Refusal("lowered-already", start.name, f"{spec.name} is {spec.form.value.replace('_', ' ')}")
    block = get_comm_block(start)
    if isinstance(block, Refusal):
        return block
    collective = block.collective
    name = collective.group.name
    if name is None or name not in context.groups:
        return Refusal("unknown-group", start.name, str(collective.group))
    if len(context.groups[name]) < 2:
        return Refusal("no-other-form", start.name, "a group of one communicates with nobody")
    pairs = zip(collective.sent.shapes, collective.received.shapes, collective.sent.dtypes, strict=False)
    sizes = [_larger(sent, received) * dtype.itemsize for sent, received, dtype in pairs]
    sized = all(isinstance(size, int) for size in sizes)
    return Candidate(
        block,
        Call(
            kind=collective.kind,
            nbytes=tuple(sizes) if sized else (EXTREMES[0],) * len(sizes),
            dtypes=collective.sent.dtypes,
            ranks=context.groups[name],
            device_type=collective.sent.devices[0].type,
            reduce_op=(collective.reduce_op or "sum").lower(),
        ),
        name,
        sized,
    )


def _larger(sent: Any, received: Any) -> Any:
    """Elements of the whole tensor; symbolic where a size is."""
    counts = []
    for shape in (sent, received):
        count: Any = 1
        for size in shape:
            count = count * size
        counts.append(count)
    known = all(isinstance(count, int) for count in counts)
    return max(counts) if known else next(count for count in counts if not isinstance(count, int))


def refuse_rounding(context: PassContext, call: Call, start: Node) -> Refusal | None:
    """Other forms add in another order than the library; of two values there is only one."""
    reduces = call.kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)
    if not (context.options.bitwise and reduces) or call.reduce_op in ORDER_FREE or len(call.ranks) == 2:
        return None
    if not any(dtype.is_floating_point or dtype.is_complex for dtype in call.dtypes):
        return None
    return Refusal("rounding", start.name, f"{call.reduce_op} of {len(call.ranks)} ranks")


class Beside:
    """Compute that stands between starts and waits, each node counted for the first collective that uses it."""

    def __init__(self, view: GraphView, model: CostModel) -> None:
        self._view, self._model = view, model
        self._left: dict[Node, float] = {}

    def us(self, candidate: Candidate) -> float:
        """Microseconds of what runs while the collective is on its way. A size that is not known counts as none, since
        ranks may take it for different ones."""
        return sum(self._us(node) for node in self._between(candidate))

    def take(self, candidate: Candidate, needed_us: float) -> None:
        """So much of it is used up: no other collective can hide behind it."""
        for node in self._between(candidate):
            taken = min(self._us(node), needed_us)
            self._left[node] -= taken
            needed_us -= taken

    def _between(self, candidate: Candidate) -> tuple[Node, ...]:
        waits = candidate.block.waits
        return self._view.between(candidate.start, min(waits)) if waits else ()

    def _us(self, node: Node) -> float:
        if node not in self._left:
            fixed = not ops.is_collective(node) and all(map(_is_fixed, (node, *node.all_input_nodes)))
            self._left[node] = (self._model.node_us(node) or 0.0) if fixed else 0.0
        return self._left[node]


def _is_fixed(node: Node) -> bool:
    if not metadata.has_value(node):
        return False
    value = node.meta.get("val")
    parts = value if isinstance(value, (list, tuple)) else [value]
    return all(isinstance(part, FakeTensor) and is_constant_sized(part) for part in parts)
