"""Hypothesis strategies for valid distributed graphs: several groups, dtypes, shapes, forms and dependences in one.

A drawn `Case` carries the graph, its groups and one set of inputs a rank; the inputs are small integers, so that sums
are exact in any order.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.samples import sample_inputs

C10D = torch.ops._c10d_functional
ATEN = torch.ops.aten

ARITHMETIC = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
MOVED_ONLY = (torch.bool, torch.float8_e4m3fn)
SHAPES = ((8, 4), (4,), (16,), (4, 2, 3), (0, 4), ())
GROUPS = {2: {"world": (0, 1)}, 4: {"world": (0, 1, 2, 3), "near": (0, 1), "far": (0, 2)}}


@dataclass(frozen=True)
class Case:
    """A graph to try, and what it needs to run."""

    gm: GraphModule
    groups: GroupTable
    inputs: list[list[Any]]

    @property
    def world_size(self) -> int:
        return len(self.inputs)


class _Program:
    """Draws one graph step by step; every step picks among the tensors made so far."""

    def __init__(self, draw: Any, world_size: int, symbolic: bool, in_place: bool, moved_only: bool) -> None:
        self.draw = draw
        self.builder = GraphBuilder(GROUPS[world_size])
        self.tensors: list[Node] = []
        self.started: list[Node] = []
        rows = self.builder.symbol("rows", 8) if symbolic else None
        dtypes = ARITHMETIC + (MOVED_ONLY if moved_only else ())
        for index in range(draw(st.integers(1, 4))):
            shape: Any = draw(st.sampled_from(SHAPES))
            if rows is not None and draw(st.booleans()):
                shape = (rows, 4)
            self.tensors.append(self.builder.input(f"x{index}", shape, draw(st.sampled_from(dtypes))))
        self.in_place = in_place

    def pick(self, accept: Any = lambda value: True) -> Node | None:
        """A tensor that fits, or None."""
        fitting = [n for n in self.tensors if accept(n.meta["val"])]
        return self.draw(st.sampled_from(fitting)) if fitting else None

    def group(self) -> str:
        return self.draw(st.sampled_from(sorted(self.builder.groups)))

    def step(self) -> None:
        """One random step; steps that find no fitting tensor do nothing."""
        steps = [
            self.compute,
            self.view,
            self.cast,
            self.reduce,
            self.gather,
            self.scatter,
            self.exchange,
            self.collect,
        ]
        steps += [self.coalesce, self.coalesce_moves, self.broadcast]
        steps += [self.overwrite, self.reduce_in_place, self.broadcast_in_place] if self.in_place else []
        self.draw(st.sampled_from(steps))()

    def compute(self) -> None:
        tensor = self.pick(arithmetic)
        if tensor is None:
            return
        value = tensor.meta["val"]
        other = self.pick(lambda v: v.dtype == value.dtype and tuple(v.shape) == tuple(value.shape))
        call = self.draw(st.sampled_from([ATEN.add.Tensor, ATEN.sub.Tensor]))
        self.tensors.append(self.builder.call(call, tensor, other if other is not None else 1))

    def view(self) -> None:
        tensor = self.pick(lambda v: v.dim() == 2)
        if tensor is not None:
            choice = self.draw(st.integers(0, 2))
            if choice == 0:
                made = self.builder.call(ATEN.reshape.default, tensor, (-1,))
            elif choice == 1:
                made = self.builder.call(ATEN.clone.default, self.builder.call(ATEN.t.default, tensor))
            else:
                made = self.builder.call(ATEN.slice.Tensor, tensor, 1, 0, 2)
            self.tensors.append(made)

    def cast(self) -> None:
        tensor = self.pick()
        dtype = self.draw(st.sampled_from((torch.float32, torch.bfloat16)))
        if tensor is not None:
            self.tensors.append(self.builder.call(ATEN._to_copy.default, tensor, dtype=dtype))

    def start(self, operator_: Any, *args: Any) -> None:
        """Start now; wait now or later."""
        started = self.builder.call(operator_, *args)
        if self.draw(st.booleans()):
            self.tensors.append(self.builder.wait(started))
        else:
            self.started.append(started)

    def collect(self) -> None:
        if self.started:
            index = self.draw(st.integers(0, len(self.started) - 1))
            self.tensors.append(self.builder.wait(self.started.pop(index)))

    def reduce(self) -> None:
        tensor = self.pick(arithmetic)
        if tensor is not None:
            op = self.draw(st.sampled_from(["sum", "max", "min"]))
            self.start(C10D.all_reduce.default, self.contiguous(tensor), op, self.group())

    def gather(self) -> None:
        tensor = self.pick(lambda v: v.dim() > 0)
        if tensor is not None:
            group = self.group()
            size = len(self.builder.groups[group])
            self.start(C10D.all_gather_into_tensor.default, self.contiguous(tensor), size, group)

    def scatter(self) -> None:
        group = self.group()
        size = len(self.builder.groups[group])
        tensor = self.pick(lambda v: arithmetic(v) and divisible(v, size))
        if tensor is not None:
            op = self.draw(st.sampled_from(["sum", "max"]))
            self.start(C10D.reduce_scatter_tensor.default, self.contiguous(tensor), op, size, group)

    def exchange(self) -> None:
        group = self.group()
        size = len(self.builder.groups[group])
        tensor = self.pick(lambda v: divisible(v, size))
        if tensor is not None:
            sizes = [tensor.meta["val"].shape[0] // size] * size
            self.start(C10D.all_to_all_single.default, self.contiguous(tensor), sizes, sizes, group)

    def broadcast(self) -> None:
        tensor = self.pick()
        if tensor is not None:
            self.start(C10D.broadcast.default, self.contiguous(tensor), 0, self.group())

    def coalesce(self) -> None:
        first = self.pick(arithmetic)
        if first is not None:
            dtype = first.meta["val"].dtype
            second = self.pick(lambda v: v.dtype == dtype and v.numel() is not None)
            members = [self.contiguous(first)] + ([self.contiguous(second)] if second not in (None, first) else [])
            made = self.builder.call(C10D.all_reduce_coalesced.default, members, "sum", self.group())
            items = [self.builder.call(operator.getitem, made, i) for i in range(len(members))]
            self.tensors.extend(self.builder.wait(item) for item in items)

    def coalesce_moves(self) -> None:
        """Gathers or scatters in one operator, their members of any shape and of one element type."""
        group, scatters = self.group(), self.draw(st.booleans())
        size = len(self.builder.groups[group])

        def fits(value: torch.Tensor) -> bool:
            return arithmetic(value) and divisible(value, size) if scatters else value.dim() > 0

        first = self.pick(fits)
        if first is None:
            return
        second = self.pick(lambda v: fits(v) and v.dtype == first.meta["val"].dtype)
        members = [self.contiguous(first)] + ([self.contiguous(second)] if second not in (None, first) else [])
        if scatters:
            made = self.builder.call(C10D.reduce_scatter_tensor_coalesced.default, members, "sum", size, group)
        else:
            made = self.builder.call(C10D.all_gather_into_tensor_coalesced.default, members, size, group)
        items = [self.builder.call(operator.getitem, made, i) for i in range(len(members))]
        self.tensors.extend(self.builder.wait(item) for item in items)

    def overwrite(self) -> None:
        tensor = self.pick(arithmetic)
        if tensor is not None:
            own = self.builder.call(ATEN.clone.default, tensor)
            self.tensors.append(self.builder.call(ATEN.add_.Tensor, own, 1))

    def reduce_in_place(self) -> None:
        tensor = self.pick(arithmetic)
        if tensor is not None:
            own = self.builder.call(ATEN.clone.default, self.contiguous(tensor))
            if self.draw(st.booleans()) and divisible(own.meta["val"], 2):
                # A part of a buffer; the other part keeps what it holds.
                part = self.builder.call(ATEN.slice.Tensor, own, 0, 0, own.meta["val"].shape[0] // 2)
                self.builder.wait(self.builder.call(C10D.all_reduce_.default, part, "sum", self.group()))
                self.tensors.append(self.builder.call(ATEN.clone.default, own))
                return
            made = self.builder.call(C10D.all_reduce_.default, own, "sum", self.group())
            self.tensors.append(self.builder.wait(made))

    def broadcast_in_place(self) -> None:
        tensor = self.pick()
        if tensor is not None:
            own = self.builder.call(ATEN.clone.default, self.contiguous(tensor))
            self.tensors.append(self.builder.wait(self.builder.call(C10D.broadcast_.default, own, 0, self.group())))

    def contiguous(self, tensor: Node) -> Node:
        """Collectives want contiguous payloads; a clone in row-major order makes them so."""
        if tensor.meta["val"].is_contiguous():
            return tensor
        return self.builder.call(ATEN.clone.default, tensor, memory_format=torch.contiguous_format)

    def finish(self) -> GraphModule:
        self.tensors.extend(self.builder.wait(started) for started in self.started)
        made = [n for n in self.tensors if n.op != "placeholder"] or self.tensors[:1]
        kept = self.draw(st.lists(st.sampled_from(made), min_size=1, max_size=4, unique=True))
        unused = [n for n in made if not n.users and n not in kept]
        return self.builder.finish(*kept, *unused)


def arithmetic(value: torch.Tensor) -> bool:
    return value.dtype in ARITHMETIC


def divisible(value: torch.Tensor, size: int) -> bool:
    """Whether dim 0 is known to split evenly; symbolic sizes are left alone, a guess would specialise them."""
    return value.dim() > 0 and isinstance(value.shape[0], int) and value.shape[0] % size == 0


@st.composite
def distributed_graphs(
    draw: Any,
    *,
    world_sizes: tuple[int, ...] = (2, 4),
    max_steps: int = 12,
    symbolic: bool = True,
    in_place: bool = True,
    moved_only: bool = True,
) -> Case:
    """A valid graph with its groups and inputs. `moved_only` admits dtypes that networks move but do not add."""
    world_size = draw(st.sampled_from(world_sizes))
    program = _Program(draw, world_size, symbolic and draw(st.booleans()), in_place, moved_only)
    for _ in range(draw(st.integers(1, max_steps))):
        program.step()
    gm = program.finish()
    return Case(gm, program.builder.groups, sample_inputs(gm, world_size, seed=draw(st.integers(0, 100))))
