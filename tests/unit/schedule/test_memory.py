"""Predicted memory against tracked storages: a graph is run value by value, each freed after its last use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.fx import GraphModule, Node

from counterpoint.ir import ops
from counterpoint.ir.alias import Hazards, waits_of
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.ops import Form
from counterpoint.schedule.memory import alive_bytes, lifetimes
from tests.support.strategies import distributed_graphs

ATEN = torch.ops.aten
C10D = torch.ops._c10d_functional


def leaves(value: Any) -> Iterator[Tensor]:
    for one in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(one, Tensor):
            yield one


class Tracked:
    """Runs a graph on one rank; a collective makes what it would make, and holds what it sends until its wait."""

    def __init__(self, gm: GraphModule, inputs: list[Any]) -> None:
        self.nodes = list(gm.graph.nodes)
        self.inputs = iter(inputs)
        self.values: dict[Node, Any] = {}
        self.flying: dict[Node, list[Any]] = {}
        self.last = {
            node: max([k, *(self.nodes.index(user) for user in node.users)]) for k, node in enumerate(self.nodes)
        }

    def alive(self) -> Iterator[int]:
        """Bytes of all storages that are alive when each node has just run."""
        for k, node in enumerate(self.nodes):
            self.values[node] = self.run(node)
            held = [*self.values.values(), *(value for values in self.flying.values() for value in values)]
            storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for v in held for t in leaves(v)}
            yield sum(storages.values())
            if ops.is_wait(node):
                self.flying = {start: kept for start, kept in self.flying.items() if node is not max(waits_of(start))}
            for other in [other for other in self.values if self.last[other] <= k and other.op != "placeholder"]:
                del self.values[other]

    def run(self, node: Node) -> Any:
        if node.op == "placeholder":
            return next(self.inputs)
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
        if node.op == "output":
            return list(args[0])
        if ops.is_wait(node):
            return args[0]
        if ops.is_collective(node):
            return self.start(node)
        return node.target(*args, **kwargs)

    def start(self, node: Node) -> Any:
        spec = ops.spec_of(node.target)
        assert spec is not None
        sent = [self.values[source] for source in ops.tensors(node, spec.payload)]
        self.flying[node] = sent
        if spec.form is Form.IN_PLACE:
            return sent if spec.coalesced else sent[0]
        made = [torch.zeros(tuple(map(int, val.shape)), dtype=val.dtype) for val in leaves(node.meta["val"])]
        return made if spec.coalesced else made[0]


def predicted(gm: GraphModule) -> list[int]:
    nodes = list(gm.graph.nodes)
    held = {node for node in nodes if node.op == "placeholder"}
    return alive_bytes(len(nodes), lifetimes(nodes, Hazards.of(gm.graph), held))


def tracked(gm: GraphModule, inputs: list[Any]) -> list[int]:
    return list(Tracked(gm, inputs).alive())


@settings(max_examples=150, deadline=None)
@given(distributed_graphs(symbolic=False, moved_only=False))
def test_predicted_memory_is_that_of_the_storages(case) -> None:
    # Inputs are all there from the beginning, and the tracked run takes them in one by one.
    count = len(case.inputs[0])
    assert predicted(case.gm)[count:] == tracked(case.gm, case.inputs[0])[count:]


def built(body: Any) -> tuple[GraphModule, list[Tensor]]:
    b = GraphBuilder()
    x = b.input("x", (8, 4))
    return b.finish(*body(b, x)), [torch.ones(8, 4)]


CASES = {
    "a reshape that is a view": lambda b, x: [b.call(ATEN.reshape.default, b.call(ATEN.relu.default, x), [-1])],
    "a reshape that copies": lambda b, x: [
        b.call(ATEN.reshape.default, b.call(ATEN.t.default, b.call(ATEN.relu.default, x)), [-1]),
        x,
    ],
    "a reshape that copies a buffer of the graph": lambda b, x: [
        b.call(ATEN.reshape.default, b.call(ATEN.clone.default, b.call(ATEN.t.default, x)), [-1])
    ],
    "an expanded view": lambda b, x: [b.call(ATEN.expand.default, b.call(ATEN.sum.dim_IntList, x, [0]), [100, 4])],
    "parts of a split": lambda b, x: (
        b.call(ATEN.split.Tensor, b.call(ATEN.relu.default, x), 4) and [b.call(ATEN.relu.default, x)]
    ),
    "an operator with several results": lambda b, x: [
        b.call(__import__("operator").getitem, b.call(ATEN.max.dim, x, 0), 0)
    ],
    "overwritten in place": lambda b, x: [b.call(ATEN.add_.Tensor, b.call(ATEN.clone.default, x), 1)],
    "a result that nobody uses": lambda b, x: b.call(ATEN.relu.default, x) and [x],
}


@pytest.mark.parametrize("name", CASES)
def test_predicted_memory_by_hand(name: str) -> None:
    gm, inputs = built(CASES[name])
    assert predicted(gm)[1:] == tracked(gm, inputs)[1:]
