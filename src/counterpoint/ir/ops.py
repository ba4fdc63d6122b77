"""The one table of communicating operators, and the only place that knows how their arguments are laid out.

Everything else asks `spec_of(target)` what an operator is and `argument(node, "reduce_op")` for a value; nobody
looks at positions, at `node.name` or at `str(target)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node

from counterpoint._torch import Formal, OpOverload, formals, once_an_operator, register_operators
from counterpoint.errors import GraphError
from counterpoint.ir import hierarchical, shared_memory  # noqa: F401  register operators of the table


class Kind(Enum):
    """What a communicating operator does, whatever form it takes."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SEND = "send"
    RECV = "recv"
    P2P_BATCH = "p2p_batch"
    GATHER_MATMUL = "all_gather_matmul"
    MATMUL_SCATTER = "matmul_reduce_scatter"
    MATMUL_REDUCE = "matmul_all_reduce"
    EXCHANGE_MATMUL = "all_to_all_matmul"
    MATMUL_EXCHANGE = "matmul_all_to_all"
    PEER_MEMORY = "peer_memory"
    WAIT = "wait"


class Form(Enum):
    """Where the result lives."""

    FUNCTIONAL = "functional"
    """A new buffer."""
    IN_PLACE = "in_place"
    """The input buffer, overwritten."""
    OUT = "out"
    """A buffer that the caller hands in."""


@dataclass(frozen=True, kw_only=True)
class OpSpec:
    """One row of the table. Fields that hold argument names are None where the operator has no such argument."""

    name: str
    """Qualified name, `namespace::operator`; the default overload is meant."""
    kind: Kind
    form: Form = Form.FUNCTIONAL
    coalesced: bool = False
    """Takes and returns lists of tensors."""
    payload: tuple[str, ...] = ("input",)
    """Arguments with the tensors that are sent (or received into)."""
    written: tuple[str, ...] = ()
    """Arguments whose buffers are overwritten, also where the schema does not say so."""
    group: str | None = "group_name"
    group_size: str | None = None
    reduce_op: str | None = None
    root: str | None = None
    """Source of a broadcast, root of a reduction."""
    peer: str | None = None
    """The other rank of a point-to-point operation."""
    tag: str | None = None
    waits: bool = True
    """The result is only valid after `wait_tensor`; otherwise the operator is complete when it returns."""

    @property
    def family(self) -> tuple[str, Kind]:
        """Operators with equal family do the same thing in different forms."""
        return self.name.split("::")[0], self.kind


def _functional(name: str, kind: Kind, **fields: Any) -> OpSpec:
    return OpSpec(name=f"_c10d_functional::{name}", kind=kind, **fields)


def _autograd(name: str, kind: Kind, **fields: Any) -> OpSpec:
    return OpSpec(name=f"_c10d_functional_autograd::{name}", kind=kind, **fields)


def _symm(name: str, kind: Kind, **fields: Any) -> OpSpec:
    return OpSpec(name=f"symm_mem::{name}", kind=kind, **({"waits": False} | fields))


def _ours(name: str, kind: Kind, **fields: Any) -> OpSpec:
    return OpSpec(name=f"counterpoint::{name}", kind=kind, waits=False, **fields)


def _shared(name: str, kind: Kind, **fields: Any) -> OpSpec:
    return OpSpec(name=f"counterpoint::shm_{name}", kind=kind, **({"waits": False} | fields))


_MANY: dict[str, Any] = {"coalesced": True, "payload": ("inputs",)}
_REDUCES: dict[str, Any] = {"reduce_op": "reduce_op"}
_SIZED: dict[str, Any] = {"group_size": "group_size"}
_INTO_OUT: dict[str, Any] = {"form": Form.OUT, "written": ("out",)}
_OVER_INPUT: dict[str, Any] = {"form": Form.IN_PLACE, "written": ("input",)}
_NO_GROUP: dict[str, Any] = {"group": None}

_ROWS: tuple[OpSpec, ...] = (
    _functional("wait_tensor", Kind.WAIT, payload=("tensor",), waits=False, **_NO_GROUP),
    # torch 2.15: one wait for all tensors of a coalesced collective.
    _functional("wait_tensors", Kind.WAIT, coalesced=True, payload=("tensors",), waits=False, **_NO_GROUP),
    # All-reduce, broadcast: one buffer in, one of the same shape out.
    _functional("all_reduce", Kind.ALL_REDUCE, **_REDUCES),
    _functional("all_reduce_", Kind.ALL_REDUCE, **_REDUCES, **_OVER_INPUT),
    _functional("all_reduce_coalesced", Kind.ALL_REDUCE, **_REDUCES, **_MANY),
    _functional(
        "all_reduce_coalesced_",
        Kind.ALL_REDUCE,
        form=Form.IN_PLACE,
        written=("inputs",),
        **_REDUCES,
        **_MANY,
    ),
    _functional("broadcast", Kind.BROADCAST, root="src"),
    _functional("broadcast_", Kind.BROADCAST, root="src", **_OVER_INPUT),
    # Gather and scatter along dim 0.
    _functional("all_gather_into_tensor", Kind.ALL_GATHER, **_SIZED),
    _functional("all_gather_into_tensor_out", Kind.ALL_GATHER, **_SIZED, **_INTO_OUT),
    _functional("all_gather_into_tensor_coalesced", Kind.ALL_GATHER, **_SIZED, **_MANY),
    _functional("reduce_scatter_tensor", Kind.REDUCE_SCATTER, **_REDUCES, **_SIZED),
    _functional("reduce_scatter_tensor_out", Kind.REDUCE_SCATTER, **_REDUCES, **_SIZED, **_INTO_OUT),
    _functional("reduce_scatter_tensor_coalesced", Kind.REDUCE_SCATTER, **_REDUCES, **_SIZED, **_MANY),
    _functional("all_to_all_single", Kind.ALL_TO_ALL),
    # Point to point. A receive fills the tensor that it is given, though its schema does not say so.
    _functional("isend", Kind.SEND, payload=("tensor",), peer="dst", tag="tag"),
    _functional("irecv", Kind.RECV, payload=("tensor",), written=("tensor",), form=Form.OUT, peer="src", tag="tag"),
    _functional(
        "batch_p2p_ops",
        Kind.P2P_BATCH,
        form=Form.OUT,
        coalesced=True,
        payload=("tensors",),
        written=("tensors",),
        peer="peer_list",
        tag="tag_list",
    ),
    # Differentiable forms; AOT autograd replaces them, graphs captured before it hold them.
    _autograd("all_gather_into_tensor", Kind.ALL_GATHER, **_SIZED),
    _autograd("reduce_scatter_tensor", Kind.REDUCE_SCATTER, **_REDUCES, **_SIZED),
    _autograd("all_to_all_single", Kind.ALL_TO_ALL),
    # DTensor's change of sharded dimension waits before it returns.
    OpSpec(name="_dtensor::shard_dim_alltoall", kind=Kind.ALL_TO_ALL, waits=False),
    # Symmetric memory: complete in stream order, so no wait, except the two low-contention forms.
    _symm("_low_contention_all_gather", Kind.ALL_GATHER, payload=("tensor",), waits=True),
    _symm("_low_contention_reduce_scatter", Kind.REDUCE_SCATTER, payload=("tensor",), waits=True, **_REDUCES),
    _symm("one_shot_all_reduce", Kind.ALL_REDUCE, **_REDUCES),
    _symm("one_shot_all_reduce_out", Kind.ALL_REDUCE, **_REDUCES, **_INTO_OUT),
    _symm(
        "one_shot_all_reduce_copy",
        Kind.ALL_REDUCE,
        payload=("local_input",),
        written=("symm_buffer",),
        **_REDUCES,
    ),
    _symm(
        "one_shot_all_reduce_copy_out",
        Kind.ALL_REDUCE,
        payload=("local_input",),
        form=Form.OUT,
        written=("symm_buffer", "out"),
        **_REDUCES,
    ),
    _symm("two_shot_all_reduce_", Kind.ALL_REDUCE, **_REDUCES, **_OVER_INPUT),
    _symm("two_shot_all_reduce_out", Kind.ALL_REDUCE, form=Form.OUT, written=("input", "output"), **_REDUCES),
    _symm("multimem_all_reduce_", Kind.ALL_REDUCE, **_REDUCES, **_OVER_INPUT),
    _symm("multimem_one_shot_all_reduce", Kind.ALL_REDUCE, **_REDUCES),
    _symm("multimem_one_shot_all_reduce_out", Kind.ALL_REDUCE, **_REDUCES, **_INTO_OUT),
    _symm("multimem_one_shot_reduce_out", Kind.REDUCE, root="root", **_REDUCES, **_INTO_OUT),
    _symm("multimem_all_gather_out", Kind.ALL_GATHER, **_INTO_OUT),
    _symm("reduce_scatter_out", Kind.REDUCE_SCATTER, form=Form.OUT, written=("input", "output")),
    _symm("nccl_reduce_scatter_offset", Kind.REDUCE_SCATTER, reduce_op="red_op", form=Form.OUT, written=("out",)),
    _symm(
        "tile_reduce",
        Kind.REDUCE,
        payload=("in_tile",),
        form=Form.OUT,
        written=("out_tile",),
        root="root",
        **_REDUCES,
    ),
    _symm(
        "multi_root_tile_reduce",
        Kind.REDUCE,
        payload=("in_tiles",),
        form=Form.OUT,
        written=("out_tile",),
        root="roots",
        **_REDUCES,
    ),
    _symm("nvshmem_all_to_all", Kind.ALL_TO_ALL, **_INTO_OUT),
    _symm("nvshmem_broadcast", Kind.BROADCAST, root="root", **_OVER_INPUT),
    _symm("all_to_all_vdev", Kind.ALL_TO_ALL, form=Form.OUT, written=("out", "out_splits_offsets")),
    _symm("all_to_all_vdev_2d", Kind.ALL_TO_ALL, form=Form.OUT, written=("out", "out_splits_offsets")),
    _symm("all_to_all_vdev_2d_offset", Kind.ALL_TO_ALL, form=Form.OUT, written=("out", "out_splits_offsets")),
    # torch 2.15: gathers by the copy engines, and NCCL's own exchanges.
    _symm("_low_contention_all_gather_ce_multicast", Kind.ALL_GATHER, payload=("tensor",), waits=True),
    _symm(
        "_low_contention_all_gather_ce_multicast_out",
        Kind.ALL_GATHER,
        payload=("tensor",),
        form=Form.OUT,
        written=("out",),
        waits=True,
    ),
    _symm("nccl_all_to_all_nd", Kind.ALL_TO_ALL, **_INTO_OUT),
    _symm("memcpy_to_multicast_", Kind.PEER_MEMORY, payload=("src",), written=("symm_mem_out",)),
    # Fused with their matmul.
    _symm("fused_all_gather_matmul", Kind.GATHER_MATMUL, payload=("A",)),
    _symm("fused_all_gather_scaled_matmul", Kind.GATHER_MATMUL, payload=("A",)),
    _symm("fused_matmul_reduce_scatter", Kind.MATMUL_SCATTER, payload=("A",), **_REDUCES),
    _symm("fused_scaled_matmul_reduce_scatter", Kind.MATMUL_SCATTER, payload=("A",), **_REDUCES),
    _ours("all_gather_matmul", Kind.GATHER_MATMUL, payload=("shard",), **_SIZED),
    _ours("all_gather_scaled_matmul", Kind.GATHER_MATMUL, payload=("shard", "shard_scale"), **_SIZED),
    _ours("matmul_reduce_scatter", Kind.MATMUL_SCATTER, payload=("lefts", "rights"), **_REDUCES, **_SIZED),
    _ours("scaled_matmul_reduce_scatter", Kind.MATMUL_SCATTER, payload=("lefts", "rights"), **_REDUCES, **_SIZED),
    _ours("matmul_all_reduce", Kind.MATMUL_REDUCE, payload=("lefts", "rights"), **_REDUCES),
    _ours("all_to_all_matmul", Kind.EXCHANGE_MATMUL, payload=("tensor",), **_SIZED),
    _ours("matmul_all_to_all", Kind.MATMUL_EXCHANGE, payload=("lefts", "rights"), **_SIZED),
    # Views of peers' buffers and one-sided copies.
    _symm("get_remote_tensors", Kind.PEER_MEMORY, payload=("x",)),
    _symm("nvshmem_put", Kind.PEER_MEMORY, payload=("tensor",), written=("tensor",), peer="peer", **_NO_GROUP),
    _symm("nvshmem_get", Kind.PEER_MEMORY, payload=("tensor",), written=("tensor",), peer="peer", **_NO_GROUP),
    # torch 2.15
    _symm("nvshmem_get_out", Kind.PEER_MEMORY, payload=("dst",), written=("dst",), peer="peer", **_NO_GROUP),
    _symm("nccl_get_out", Kind.PEER_MEMORY, payload=("dst",), written=("dst",), peer="peer", **_NO_GROUP),
    _symm("nccl_put", Kind.PEER_MEMORY, payload=("tensor",), written=("tensor",), peer="peer", **_NO_GROUP),
    _symm("nccl_get", Kind.PEER_MEMORY, payload=("tensor",), written=("tensor",), peer="peer", **_NO_GROUP),
    # Memory shared by the ranks of a host (ir/shared_memory.py). The first of each form chooses the algorithm itself.
    _shared("all_reduce", Kind.ALL_REDUCE, **_REDUCES),
    _shared("all_reduce_", Kind.ALL_REDUCE, **_REDUCES, **_OVER_INPUT),
    _shared("all_reduce_out", Kind.ALL_REDUCE, **_REDUCES, **_INTO_OUT),
    _shared("one_shot_all_reduce", Kind.ALL_REDUCE, **_REDUCES),
    _shared("one_shot_all_reduce_", Kind.ALL_REDUCE, **_REDUCES, **_OVER_INPUT),
    _shared("one_shot_all_reduce_out", Kind.ALL_REDUCE, **_REDUCES, **_INTO_OUT),
    _shared("two_shot_all_reduce", Kind.ALL_REDUCE, **_REDUCES),
    _shared("two_shot_all_reduce_", Kind.ALL_REDUCE, **_REDUCES, **_OVER_INPUT),
    _shared("two_shot_all_reduce_out", Kind.ALL_REDUCE, **_REDUCES, **_INTO_OUT),
    _shared("multicast_all_reduce", Kind.ALL_REDUCE, **_REDUCES),
    _shared("multicast_all_reduce_", Kind.ALL_REDUCE, **_REDUCES, **_OVER_INPUT),
    _shared("multicast_all_reduce_out", Kind.ALL_REDUCE, **_REDUCES, **_INTO_OUT),
    _shared("all_gather", Kind.ALL_GATHER, **_SIZED),
    _shared("all_gather_out", Kind.ALL_GATHER, **_SIZED, **_INTO_OUT),
    _shared("reduce_scatter", Kind.REDUCE_SCATTER, **_REDUCES, **_SIZED),
    _shared("reduce_scatter_out", Kind.REDUCE_SCATTER, **_REDUCES, **_SIZED, **_INTO_OUT),
    # Inside the hosts and across them (ir/hierarchical.py).
    _ours("hierarchical_all_reduce", Kind.ALL_REDUCE, **_REDUCES),
    _ours("hierarchical_all_gather", Kind.ALL_GATHER, **_SIZED),
    _ours("hierarchical_reduce_scatter", Kind.REDUCE_SCATTER, **_REDUCES, **_SIZED),
)

TABLE: Mapping[str, OpSpec] = MappingProxyType({row.name: row for row in _ROWS})
"""Every communicating operator by qualified name, whether or not the installed torch has it."""

COMMUNICATING_NAMESPACES = frozenset(
    {"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem", "_dtensor"}
)
"""An operator of these namespaces that is not in the table may communicate, and is a barrier."""

GROUP_GETTERS = frozenset({"_dtensor::mesh_get_process_group"})
"""Operators of these namespaces that only find a group, for graphs that take meshes as inputs (torch 2.13 on)."""


@once_an_operator
def _spec_of_overload(overload: OpOverload) -> OpSpec | None:
    return TABLE.get(overload.name().split(".")[0])


def spec_of(target: Any) -> OpSpec | None:
    """The row of a node's target, or None when it is not a communicating operator that we know."""
    return _spec_of_overload(target) if isinstance(target, OpOverload) else None


def form_of(spec: OpSpec, *, form: Form = Form.FUNCTIONAL, coalesced: bool = False) -> OpSpec | None:
    """The row that does what `spec` does in another form, or None where torch has no such operator."""
    for row in TABLE.values():
        if (row.family, row.form, row.coalesced) == (spec.family, form, coalesced):
            return row
    return None


def overload_of(spec: OpSpec) -> OpOverload:
    """The callable operator of a row; GraphError when the installed torch does not have it."""
    namespace, name = spec.name.split("::")
    register_operators()
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        raise GraphError(
            f"the installed torch {torch.__version__} has no operator {spec.name}",
            next_step="use a newer torch, or a pass that does not emit this operator",
        )
    overload: OpOverload = packet.default
    return overload


def is_collective(node: Node) -> bool:
    """Whether the node starts communication (waits excluded)."""
    spec = spec_of(node.target) if node.op == "call_function" else None
    return spec is not None and spec.kind is not Kind.WAIT


def is_wait(node: Node) -> bool:
    """Whether the node waits for a started collective."""
    spec = spec_of(node.target) if node.op == "call_function" else None
    return spec is not None and spec.kind is Kind.WAIT


@once_an_operator
def _formals_by_name(overload: OpOverload) -> Mapping[str, tuple[int, Formal]]:
    return MappingProxyType({formal.name: (i, formal) for i, formal in enumerate(formals(overload))})


def argument_names(node: Node) -> frozenset[str]:
    """The names of the arguments that a node's operator has; none where it is no torch operator."""
    return frozenset(_formals_by_name(node.target)) if isinstance(node.target, OpOverload) else frozenset()


def argument(node: Node, name: str) -> Any:
    """The value of a schema argument by its name, however the call wrote it, or the schema's default."""
    if not isinstance(node.target, OpOverload):
        raise GraphError(
            f"{node.target} is not a torch operator, so its call has no argument {name!r}",
            where=f"node {node.name}",
            next_step="ask only nodes whose target is an OpOverload",
        )
    position, formal = _formals_by_name(node.target).get(name, (None, None))
    if formal is None or position is None:
        raise GraphError(f"{node.target} has no argument {name!r}", where=f"node {node.name}")
    if position < len(node.args) and not formal.kwarg_only:
        return node.args[position]
    if name in node.kwargs:
        return node.kwargs[name]
    if formal.has_default:
        return formal.default
    raise GraphError(
        f"{node.target} is called without its argument {name!r}",
        where=f"node {node.name}",
        next_step="pass the argument; a graph file may have been cut or edited by hand",
    )


def arguments_after_payload(spec: OpSpec) -> tuple[str, ...]:
    """The names of the arguments that say how, as opposed to what: reduction, group and its size, in schema order."""
    beside = {*spec.payload, *spec.written}
    return tuple(name for name in _formals_by_name(overload_of(spec)) if name not in beside)


def waited_nodes(wait: Node) -> tuple[Node, ...]:
    """What a wait waits for: the started value, or the values of a coalesced one."""
    spec = spec_of(wait.target)
    return tensors(wait, spec.payload) if spec is not None else ()


def reduce_op_of(node: Node) -> str | None:
    """The reduction of a collective as text; torch 2.15 also admits objects, such as a sum with a factor."""
    spec = spec_of(node.target)
    if spec is None or spec.reduce_op is None:
        return None
    value = argument(node, spec.reduce_op)
    return value if isinstance(value, str) else str(value)


def tensors(node: Node, names: tuple[str, ...]) -> tuple[Node, ...]:
    """The nodes behind the named arguments, lists flattened, in order; absent optional arguments left out."""
    found: list[Node] = []
    for name in names:
        value = argument(node, name)
        found.extend(v for v in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(v, Node))
    return tuple(found)
