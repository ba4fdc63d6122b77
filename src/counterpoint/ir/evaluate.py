"""Run a graph on all ranks at once, in one process and without a process group.

Every rank is a coroutine over its own graph. A start posts its payload and goes on; the wait suspends the rank until
all ranks of the group have posted the matching start. Until its wait a result holds poison, so that a program which
reads too early computes something else than one which does not. When no rank can go on, the error says who waits for
whom.
"""

from __future__ import annotations

import operator
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from counterpoint._torch import formals
from counterpoint.errors import EvaluationError
from counterpoint.ir import ops
from counterpoint.ir.groups import GroupTable, group_of
from counterpoint.ir.ops import Kind, OpSpec
from counterpoint.ir.rendezvous import Post, Promise, Switchboard

Outputs = tuple[Any, ...]
Walk = Generator[Promise, None, Any]


def evaluate(
    gm: GraphModule | Sequence[GraphModule], inputs_by_rank: Sequence[Sequence[Any]], groups: GroupTable
) -> tuple[Outputs, ...]:
    """The outputs of every rank. One graph for all ranks, or one a rank. Inputs are not changed."""
    world_size = len(inputs_by_rank)
    graphs = [gm] * world_size if isinstance(gm, GraphModule) else list(gm)
    board = Switchboard()
    walks: dict[int, Walk] = {}
    for rank, (graph, inputs) in enumerate(zip(graphs, inputs_by_rank, strict=True)):
        own = [i.detach().clone() if isinstance(i, Tensor) else i for i in inputs]
        walks[rank] = _Rank(graph, rank, world_size, groups, board).run(own)
    with torch.no_grad():
        return _drive(walks)


def _drive(walks: dict[int, Walk]) -> tuple[Outputs, ...]:
    """Let every rank run until it waits, again and again, until all are done or none can move."""
    outputs: dict[int, Outputs] = {}
    waiting: dict[int, Promise] = {}
    order = list(walks)
    while len(outputs) < len(order):
        moved = False
        for rank in order:
            if rank in outputs or (rank in waiting and not waiting[rank].ready()):
                continue
            moved = True
            try:
                waiting[rank] = next(walks[rank])
            except StopIteration as done:
                outputs[rank] = done.value
        if not moved:
            stuck = "; ".join(f"rank {r} waits for {p.describe()}" for r, p in waiting.items() if r not in outputs)
            raise EvaluationError(f"the ranks wait for each other: {stuck}", next_step="compare the ranks' graphs")
    return tuple(outputs[rank] for rank in order)


class _Rank:
    """One rank's walk over its graph."""

    def __init__(self, gm: GraphModule, rank: int, world: int, groups: GroupTable, board: Switchboard) -> None:
        self.gm, self.rank, self.world, self.groups, self.board = gm, rank, world, groups, board
        self.values: dict[Node, Any] = {}
        # Promised tensors by address: a wait is handed the tensor, or a view of it, and nothing else.
        self.pending: dict[int, tuple[Promise, int, Tensor]] = {}

    def run(self, inputs: Sequence[Any]) -> Walk:
        left = iter(inputs)
        for node in self.gm.graph.nodes:
            if node.op == "output":
                found = self._read(node.args[0])
                return tuple(found) if isinstance(found, (list, tuple)) else (found,)
            if node.op == "placeholder":
                self.values[node] = self._next_input(node, left)
            elif ops.is_collective(node):
                self.values[node] = yield from self._start(node)
            elif ops.is_wait(node):
                self.values[node] = yield from self._wait(node)
            else:
                self.values[node] = self._compute(node)
        raise EvaluationError("the graph has no output node", next_step="close it with graph.output(...)")

    def _next_input(self, node: Node, left: Iterator[Any]) -> Any:
        try:
            return next(left)
        except StopIteration:
            raise EvaluationError(f"rank {self.rank} has too few inputs", where=f"placeholder {node.name}") from None

    def _read(self, value: Any) -> Any:
        return map_arg(value, self.values.__getitem__)

    def _compute(self, node: Node) -> Any:
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.gm)
        if node.op != "call_function":
            raise EvaluationError(
                f"cannot evaluate a {node.op}",
                where=f"node {node.name}",
                next_step="capture the graph after AOT autograd",
            )
        return cast(Any, node.target)(*self._read(node.args), **self._read(node.kwargs))

    def _start(self, node: Node) -> Walk:
        spec = cast(OpSpec, ops.spec_of(node.target))
        arguments = {f.name: self._read(ops.argument(node, f.name)) for f in formals(cast(Any, node.target))}
        ranks = self._ranks(node, spec, arguments)
        if spec.kind in _POINT_TO_POINT:
            return (yield from self._exchange(spec, ranks, arguments))
        payload = [t.detach().clone() for name in spec.payload for t in _listed(arguments[name])]
        name = str(group_of(arguments[cast(str, spec.group)]))
        promise = self.board.start(self.rank, name, ranks, spec, Post(node, payload, arguments))
        if not spec.waits:
            results = yield from _until(promise)
            return _into(spec, arguments, results)
        buffers = [t for written in spec.written for t in _listed(arguments[written])]
        promised = buffers or [_poison(_result_shape(spec, t, len(ranks), arguments), t) for t in payload]
        for index, tensor in enumerate(promised):
            self._promise(promise, index, tensor)
        return promised if spec.coalesced else promised[0]

    def _ranks(self, node: Node, spec: OpSpec, arguments: Mapping[str, Any]) -> tuple[int, ...]:
        name = group_of(arguments[spec.group]).name if spec.group is not None else None
        if name is None:
            raise EvaluationError(
                f"{spec.name} has no reference semantics without a named group", where=f"node {node.name}"
            )
        return self.groups.seen_from(self.rank, name, self.world)

    def _promise(self, promise: Promise, index: int, tensor: Tensor) -> None:
        if tensor.numel():
            self.pending[tensor.data_ptr()] = (promise, index, tensor)

    def _wait(self, node: Node) -> Walk:
        spec = cast(OpSpec, ops.spec_of(node.target))
        awaited = self._read(ops.argument(node, spec.payload[0]))
        for tensor in _listed(awaited):
            promised = self.pending.pop(tensor.data_ptr(), None) if tensor.numel() else None
            if promised is not None:
                promise, index, target = promised
                results = yield from _until(promise)
                target.copy_(results[index].reshape(target.shape))
        return awaited

    def _exchange(self, spec: OpSpec, ranks: tuple[int, ...], arguments: Mapping[str, Any]) -> Walk:
        """Point-to-point operations, single or in a batch. Peers are numbered within the group."""
        tensors = _listed(arguments[spec.payload[0]])
        kinds = arguments["op_list"] if spec.coalesced else ["isend" if spec.kind is Kind.SEND else "irecv"]
        peers, tags = _listed(arguments[cast(str, spec.peer)]), _listed(arguments[cast(str, spec.tag)])
        given = []
        for kind, peer, tag, tensor in zip(kinds, peers, tags, tensors, strict=True):
            if kind == "isend":
                self.board.send(self.rank, ranks[peer], ranks, tag, tensor.detach().clone())
                given.append(tensor.new_empty(0))
            else:
                self._promise(self.board.receive(ranks[peer], self.rank, ranks, tag), 0, tensor)
                given.append(tensor)
        return given if spec.coalesced else given[0]
        yield


_POINT_TO_POINT = frozenset({Kind.SEND, Kind.RECV, Kind.P2P_BATCH})


def _until(promise: Promise) -> Generator[Promise, None, list[Any]]:
    while not promise.ready():
        yield promise
    return promise.take()


def _into(spec: OpSpec, arguments: Mapping[str, Any], results: list[Any]) -> Any:
    """The result of an operator that needs no wait: in the buffer it was given, if any, else as it is."""
    if not spec.written:
        return results if spec.coalesced else results[0]
    buffer = arguments[spec.written[-1]]
    buffer.copy_(results[0])
    return buffer if spec.name != "symm_mem::one_shot_all_reduce_copy" else results[0]


def _result_shape(spec: OpSpec, sent: Tensor, ranks: int, arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """Real sizes: those of the fake value may be symbolic, or another rank's."""
    if spec.kind is Kind.ALL_REDUCE or spec.kind is Kind.BROADCAST:
        return tuple(sent.shape)
    rows = sent.shape[0] if sent.dim() else 1
    if spec.kind is Kind.ALL_GATHER:
        rows *= ranks
    elif spec.kind is Kind.REDUCE_SCATTER:
        rows //= ranks
    else:
        rows = sum(arguments["output_split_sizes"])
    return (rows, *sent.shape[1:])


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _poison(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A buffer whose content nobody can mistake for a result."""
    made = torch.empty(shape, dtype=like.dtype, device=like.device)
    made.flatten().view(torch.uint8).fill_(0xA5 if like.dtype is not torch.bool else 1)
    return made
