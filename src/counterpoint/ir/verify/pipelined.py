"""What the pipelined operators (`counterpoint.ir.pipelined`) compute: the plain sequences that they stand for.

Each is spelled out as a small graph of collectives and matmuls in the form in which compiled programs hold them, and
that graph is read in its place. So a pipelined graph has the terms of the graph before it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Graph, Node

from counterpoint._torch import FakeTensorMode
from counterpoint.errors import CounterpointError
from counterpoint.ir import fake, metadata, ops
from counterpoint.ir.verify.reader import Handler, Reader
from counterpoint.ir.verify.sizes import UndecidedError

ATEN = torch.ops.aten
C10D = torch.ops._c10d_functional

DONE_BEFORE = "counterpoint_done_before"
"""Key of the metadata of a permutation or an elementwise operator that was done behind a gather and now is before it.

Either order is the same tensor. The mark only says in which of the two the plain sequence was written.
"""

TURNED = "counterpoint_turned"
"""Key of the metadata of an operator that computes products as `right^T @ left^T`, which were computed as
`left @ right` and then turned. Either is the same numbers; the mark says which of the two the plain sequence was."""

Spelled = Sequence[Node] | Node


class Spelling:
    """A graph beside the one that is read; nodes of the latter are its inputs."""

    def __init__(self, node: Node, groups: Mapping[str, Any]) -> None:
        self.node, self.groups = node, groups
        self.graph = Graph()
        self.inputs: dict[Node, Node] = {}
        """Inputs of this graph by the nodes that they stand for."""
        self.mode: FakeTensorMode = fake.fake_mode_of(node.graph)

    def get(self, name: str) -> Any:
        """An argument of the operator, its tensors as inputs."""
        return torch.fx.map_arg(ops.argument(self.node, name), self._input)

    def _input(self, outer: Node) -> Node:
        if outer not in self.inputs:
            inner = self.graph.placeholder(f"{self.node.name}_{len(self.inputs)}")
            inner.meta["val"] = outer.meta["val"]
            self.inputs[outer] = inner
        return self.inputs[outer]

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        made = self.graph.call_function(target)
        # Set afterwards, because sizes may be symbolic numbers here: nobody is going to run this graph.
        made.args, made.kwargs = args, kwargs
        return fake.set_value(made, fake.run_fake(made, self.mode, self.groups))

    def _turned(self, name: str) -> list[Node]:
        """The matrices of an argument with rows for columns: what has been turned is taken as it was."""
        outers: Sequence[Node] = ops.argument(self.node, name)
        return [
            self._input(outer.all_input_nodes[0])
            if outer.target is ATEN.permute.default and metadata.tensor_of(outer).dim() == 2
            else self(ATEN.permute.default, self._input(outer), [1, 0])
            for outer in outers
        ]

    def gathered(self, shard: Node, dim: int) -> Node:
        """All ranks' parts side by side."""
        ranks = self.get("group_size")
        start = self(C10D.all_gather_into_tensor.default, shard, ranks, self.get("group_name"))
        return self.cut_and_joined(self(C10D.wait_tensor.default, start), ranks, 0, dim)

    def gathered_argument(self, name: str, dim: int) -> Node:
        """An argument with all ranks' parts side by side, what was done before the gather done behind it."""
        outer: Node = ops.argument(self.node, name)
        behind: list[Node] = []
        while outer.meta.get(DONE_BEFORE):
            behind.append(outer)
            if outer.target is ATEN.permute.default:
                dim = ops.argument(outer, "dims")[dim]
            (outer,) = outer.all_input_nodes
        value = self.gathered(self._input(outer), dim)
        for node in reversed(behind):
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), partial(_instead, value))
            value = self(node.target, *args, **kwargs)
        return value

    def scattered(self, whole: Node, dim: int) -> Node:
        """This rank's part of the sum over all ranks."""
        ranks = self.get("group_size")
        rows = self.cut_and_joined(whole, ranks, dim, 0)
        start = self(C10D.reduce_scatter_tensor.default, rows, self.get("reduce_op"), ranks, self.get("group_name"))
        return self(C10D.wait_tensor.default, start)

    def exchanged(self, value: Node) -> Node:
        """This rank's parts of all ranks' tensors, in equal parts along dim 0."""
        ranks = self.get("group_size")
        sizes = [metadata.tensor_of(value).shape[0] // ranks] * ranks
        start = self(C10D.all_to_all_single.default, value, sizes, sizes, self.get("group_name"))
        return self(C10D.wait_tensor.default, start)

    def cut_and_joined(self, value: Node, count: int, cut: int, joined: int) -> Node:
        """The tensor cut into equal pieces along one dimension, these joined along another."""
        dims = metadata.tensor_of(value).dim()
        cut, joined = cut % dims, joined % dims
        if cut == joined:
            return value
        split = self(ATEN.split.Tensor, value, metadata.tensor_of(value).shape[cut] // count, cut)
        return self(ATEN.cat.default, [self(operator.getitem, split, i) for i in range(count)], joined)

    def product(self, left: Node, right: Node, bias: Node | None, dtype: torch.dtype | None) -> Node:
        """A matmul in two dimensions, as compiled programs have it, in the dimensions that it should have."""
        shape, sizes = metadata.tensor_of(left).shape, metadata.tensor_of(right).shape
        if dtype not in (None, metadata.tensor_of(left).dtype):
            raise UndecidedError
        if len(shape) == 3 and len(sizes) == 3 and bias is None:
            return self(ATEN.bmm.default, left, right)
        if len(sizes) != 2:
            raise UndecidedError
        rows = self(ATEN.reshape.default, left, [-1, shape[-1]]) if len(shape) != 2 else left
        made = self(ATEN.mm.default, rows, right) if bias is None else self(ATEN.addmm.default, bias, rows, right)
        return self(ATEN.reshape.default, made, [*shape[:-1], sizes[1]]) if len(shape) != 2 else made

    def sum_of_products(self) -> Node:
        """The products of the two lists, added up in their order, and converted where that is asked for."""
        total: Node | None = None
        turned = bool(self.node.meta.get(TURNED))
        lefts, rights = (self._turned(name) if turned else self.get(name) for name in ("lefts", "rights"))
        for index, (left, right) in enumerate(zip(*((rights, lefts) if turned else (lefts, rights)), strict=True)):
            made = self.product(left, right, None if index else self.get("bias"), None)
            total = made if total is None else self(ATEN.add.Tensor, total, made)
        if turned and total is not None:
            total = self(ATEN.permute.default, total, [1, 0])
        dtype = self.get("out_dtype")
        if total is None:
            raise UndecidedError
        same = dtype in (None, metadata.tensor_of(total).dtype)
        return total if same else self(ATEN._to_copy.default, total, dtype=dtype)


def _instead(value: Node, _: Node) -> Node:
    return value


def _all_gather_matmul(spell: Spelling) -> Spelled:
    gathered = spell.gathered_argument("shard", spell.get("gather_dim"))
    products = []
    for other, bias, dtype in zip(*(spell.get(name) for name in ("others", "biases", "out_dtypes")), strict=True):
        left, right = (gathered, other) if spell.get("gathered_left") else (other, gathered)
        products.append(spell.product(left, right, bias, dtype))
    return [*products, gathered] if spell.get("keep_gathered") else products


def _all_gather_scaled_matmul(spell: Spelling) -> Spelled:
    shard, scale, dim = spell.get("shard"), spell.get("shard_scale"), spell.get("gather_dim")
    gathered = spell.gathered_argument("shard", dim)
    rows = metadata.tensor_of(scale)
    if rows.numel() != 1 and rows.shape[:-1] == metadata.tensor_of(shard).shape[:-1]:
        scale = spell.gathered_argument("shard_scale", dim)
    if rows.dim() > 2:
        scale = spell(ATEN.reshape.default, scale, [-1, 1])
    names = ("others", "scales", "biases", "result_scales", "out_dtypes", "fast_accum")
    products = [_scaled(spell, gathered, scale, *given) for given in zip(*map(spell.get, names), strict=True)]
    return [*products, gathered] if spell.get("keep_gathered") else products


def _scaled(spell: Spelling, left: Node, scale: Node, right: Node, other: Node, *rest: Any) -> Node:
    shape = metadata.tensor_of(left).shape
    rows = spell(ATEN.reshape.default, left, [-1, shape[-1]]) if len(shape) != 2 else left
    made = spell(ATEN._scaled_mm.default, rows, right, scale, other, *rest)
    sizes = [*shape[:-1], metadata.tensor_of(right).shape[1]]
    return spell(ATEN.reshape.default, made, sizes) if len(shape) != 2 else made


def _matmul_reduce_scatter(spell: Spelling) -> Spelled:
    return spell.scattered(spell.sum_of_products(), spell.get("scatter_dim"))


def _matmul_all_reduce(spell: Spelling) -> Spelled:
    start = spell(C10D.all_reduce.default, spell.sum_of_products(), spell.get("reduce_op"), spell.get("group_name"))
    return spell(C10D.wait_tensor.default, start)


def _all_to_all_matmul(spell: Spelling) -> Spelled:
    received, names = spell.exchanged(spell.get("tensor")), ("others", "biases", "out_dtypes")
    products = [spell.product(received, *given) for given in zip(*map(spell.get, names), strict=True)]
    return [*products, received] if spell.get("keep_received") else products


def _matmul_all_to_all(spell: Spelling) -> Spelled:
    return spell.exchanged(spell.sum_of_products())


_SPELLED: Mapping[str, Callable[[Spelling], Spelled]] = MappingProxyType(
    {
        "counterpoint::all_gather_matmul": _all_gather_matmul,
        "counterpoint::all_gather_scaled_matmul": _all_gather_scaled_matmul,
        "counterpoint::matmul_reduce_scatter": _matmul_reduce_scatter,
        "counterpoint::matmul_all_reduce": _matmul_all_reduce,
        "counterpoint::all_to_all_matmul": _all_to_all_matmul,
        "counterpoint::matmul_all_to_all": _matmul_all_to_all,
    }
)


def _reading(spelled: Callable[[Spelling], Spelled], handlers: Mapping[str, Handler], otherwise: Handler) -> Handler:
    def read(reader: Reader, node: Node) -> None:
        spelling = Spelling(node, reader.groups)
        try:
            result = spelled(spelling)
        except (UndecidedError, CounterpointError, RuntimeError, TypeError, ValueError):
            # What cannot be spelled out is compared as an operator of its own.
            otherwise(reader, node)
            return
        for outer, inner in spelling.inputs.items():
            reader.store.is_same(inner, outer)
        for inner in _calls(spelling.graph):
            reader.stands_for[inner] = node
            reader.read_call(inner, handlers)
        if isinstance(result, Node):
            reader.store.is_same(node, result)
        else:
            reader.store.hold(node, tuple(result))

    return read


def _calls(graph: Graph) -> Iterator[Node]:
    return (node for node in graph.nodes if node.op == "call_function")


def handlers_over(handlers: Mapping[str, Handler]) -> Mapping[str, Handler]:
    """The handlers of pipelined operators, which read what these stand for with the given ones."""
    return {name: _reading(spelled, handlers, handlers[name]) for name, spelled in _SPELLED.items()}
