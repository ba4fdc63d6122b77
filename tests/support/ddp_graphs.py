"""Hypothesis strategies for graphs that reduce gradients, in all forms that captures give and some that they do not.

A drawn `Case` is one of `tests.support.strategies`: a graph, its groups, inputs of small integers for each rank.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.samples import sample_inputs
from tests.support.strategies import ATEN, C10D, GROUPS, Case

SHAPES = ((4,), (2, 3), (8, 4), (), (0, 4), (1,))
DTYPES = (torch.float32, torch.bfloat16)


class _Backward:
    """Draws one backward pass: gradients are made, scaled, cast, reduced, waited for and used, in any order."""

    def __init__(self, draw: Any, world_size: int, symbolic: bool) -> None:
        self.draw = draw
        self.builder = GraphBuilder(GROUPS[world_size])
        self.call = self.builder.call
        self.outputs: list[Node] = []
        self.waiting: list[tuple[Node, Node]] = []
        """Starts without a wait so far, each with its gradient."""
        self.inputs = [self.builder.input(f"x{i}", self.shape(symbolic), self.one_of(DTYPES)) for i in range(4)]
        self.gradients = [self.call(ATEN.add.Tensor, x, 1) for x in self.inputs[: self.draw(st.integers(1, 4))]]

    def one_of(self, choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def shape(self, symbolic: bool) -> Any:
        if symbolic and self.chance():
            return (self.builder.symbol(f"rows{self.draw(st.integers(0, 99))}", 8), 4)
        return self.one_of(SHAPES)

    def step(self) -> None:
        self.one_of(
            [self.gradient, self.reduce, self.reduce, self.reduce, self.collect, self.collect, self.overwrite]
        )()

    def gradient(self) -> None:
        """Another gradient: computed from inputs, from another gradient or from a reduced one."""
        source = self.one_of(self.inputs + self.gradients + self.outputs)
        self.gradients.append(self.call(self.one_of([ATEN.neg.default, ATEN.abs.default]), source))

    def reduce(self) -> None:
        gradient = self.one_of(self.gradients + self.inputs)
        sent = gradient
        for _ in range(self.draw(st.integers(0, 3))):
            sent = self.arithmetic(sent)
        in_place = sent not in self.gradients + self.inputs and self.chance()
        target = (
            C10D.all_reduce_.default if in_place and sent.target is not ATEN.view.default else C10D.all_reduce.default
        )
        group, op = self.one_of(sorted(self.builder.groups)), self.one_of(["sum", "sum", "max"])
        if self.chance():
            start = self.call(target, sent, op, group)
        else:
            start = self.call(target, sent, reduce_op=op, group_name=group)
        self.waiting.append((start, gradient))
        if self.chance():
            self.collect()

    def arithmetic(self, value: Node) -> Node:
        """A scale, a cast or a view, such as stand before a reduction and behind its wait."""
        scale = self.one_of([2, 4, 0.5])
        target = self.one_of(
            [ATEN.div.Tensor, ATEN.mul.Tensor, ATEN.mul.Scalar, ATEN._to_copy.default, ATEN.view.default]
        )
        if target is ATEN._to_copy.default:
            return self.call(target, value, dtype=self.one_of(DTYPES))
        if target is ATEN.view.default:
            return self.call(target, value, [-1]) if value.meta["val"].numel() != 0 else value
        return self.call(target, value, scale)

    def collect(self) -> None:
        """Wait for a reduction and use the result: as it is, behind arithmetic, copied over the gradient, or not."""
        if not self.waiting:
            return
        start, gradient = self.waiting.pop(self.draw(st.integers(0, len(self.waiting) - 1)))
        result = self.builder.wait(start)
        for _ in range(self.draw(st.integers(0, 2))):
            result = self.arithmetic(result)
        same = result.meta["val"].shape == gradient.meta["val"].shape
        use = self.one_of(["output", "output", "copy", "copy_", "twice", "nothing"])
        if use == "copy" and same:
            result = self.call(ATEN.copy.default, gradient, result)
        elif use == "copy_" and same and gradient not in self.inputs:
            result = self.call(ATEN.copy_.default, gradient, result)
        elif use == "twice":
            self.outputs.append(self.call(ATEN.neg.default, result))
        if use != "nothing":
            self.outputs.append(result)

    def overwrite(self) -> None:
        """A write to a gradient, before or after it has been sent."""
        target = self.one_of(self.gradients)
        if all(target is not gradient for _, gradient in self.waiting):
            self.outputs.append(self.call(ATEN.add_.Tensor, target, 1))

    def finish(self) -> GraphModule:
        while self.waiting:
            self.collect()
        return self.builder.finish(*(self.outputs or self.gradients))


@st.composite
def ddp_graphs(draw: Any, *, world_sizes: tuple[int, ...] = (2, 4), max_steps: int = 14, symbolic: bool = True) -> Case:
    """A graph that reduces gradients, with its groups and inputs."""
    world_size = draw(st.sampled_from(world_sizes))
    backward = _Backward(draw, world_size, symbolic and draw(st.booleans()))
    for _ in range(draw(st.integers(2, max_steps))):
        backward.step()
    gm = backward.finish()
    if draw(st.booleans()):
        for node in gm.graph.nodes:
            node.meta.pop("tensor_meta", None)
    return Case(gm, backward.builder.groups, sample_inputs(gm, world_size, seed=draw(st.integers(0, 100))))
