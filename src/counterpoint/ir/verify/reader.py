"""Read a graph in order and work out the terms of every value. `structure` and `communication` know the operators.

What neither of them knows becomes an opaque term: equal operator, equal arguments, equal value.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch.fx import Graph, Node

from counterpoint._torch import OpOverload, formals
from counterpoint.ir import effects, metadata, ops
from counterpoint.ir.effects import Effect
from counterpoint.ir.verify.flat import Flat, flat, whole
from counterpoint.ir.verify.sizes import Size, UndecidedError, exact, numel, tidy
from counterpoint.ir.verify.store import Store, Window
from counterpoint.ir.verify.terms import Operand, Terms

Handler = Callable[["Reader", Node], None]


class Reader:
    """The reading of one graph."""

    def __init__(self, terms: Terms, groups: Mapping[str, Sequence[int]]) -> None:
        self.terms = terms
        self.groups = groups
        self.store = Store()
        self.effects: list[tuple[str, str, Any]] = []
        """What leaves the graph beside its outputs: (what, node, value)."""
        self.traffic: dict[int, Size] = {}
        """How often each collective term is sent; a half when half of it is."""
        self.carriers: dict[int, list[Node]] = {}
        """The nodes that start each collective term."""
        self.stands_for: dict[Node, Node] = {}
        """The node of the graph for each node that spells out what it does."""
        self._draws = 0
        self._placeholders = 0
        self._inputs: list[tuple[Node, Any]] = []

    def read(self, graph: Graph, handlers: Mapping[str, Handler]) -> None:
        """Work out everything, in graph order."""
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._read_source(node)
            elif node.op != "output":
                self.read_call(node, handlers)
        for node, before in self._inputs:
            after = self.store.value(node)
            if after != before:
                self.effects.append((f"the final value of {node.op} {node.target}", node.name, after))

    def read_call(self, node: Node, handlers: Mapping[str, Handler]) -> None:
        """Work out one call."""
        handler = handlers.get(name_of(node.target))
        try:
            (handler or Reader.opaque)(self, node)
        except UndecidedError:
            self.opaque(node)

    def _read_source(self, node: Node) -> None:
        place: Hashable = str(node.target)
        if node.op == "placeholder":
            place = self._placeholders
            self._placeholders += 1
        value = node.meta.get("val")
        size = numel(value) if isinstance(value, torch.Tensor) else 1
        term = self.terms.number("input", (node.op, place), (), size, node.name)
        held = whole(term, size) if isinstance(value, torch.Tensor) else term
        self.store.hold(node, held)
        self._inputs.append((node, held))

    def value(self, node: Node) -> Flat:
        """The elements of a tensor."""
        value = self.store.value(node)
        if not isinstance(value, Flat):
            raise UndecidedError
        return value

    def parts(self, node: Node) -> Any:
        """What a node holds, with the parts of a list worked out."""
        held = self.store.value(node)
        return tuple(map(self._part_of_list, held)) if isinstance(held, tuple) else held

    def _part_of_list(self, part: Any) -> Any:
        if isinstance(part, Node):
            return self.store.value(part)
        return self._shown(part) if isinstance(part, Window) else part

    def _shown(self, window: Window) -> Flat:
        """The elements that a window shows; a term of its own where it cannot be told which they are."""
        shown = self.value(window.parent)
        try:
            return window.seen(shown)
        except UndecidedError:
            place = (window.rows, window.start, window.end)
            size = tidy(window.rows * (window.end - window.start))
            term = self.terms.number("window", place, (Operand(shown, ()),), size, window.parent.name)
            return whole(term, size)

    def each(self, value: Flat, change: Callable[[int], int]) -> Flat:
        """Apply something elementwise."""
        return flat(value.rows, [c._replace(term=change(c.term)) for c in value.cells])

    def cast(self, value: Flat, old: torch.dtype, new: torch.dtype) -> Flat:
        """Elementwise change of dtype."""
        return value if old == new else self.each(value, lambda t: self.terms.cast(t, new))

    def scaled(self, value: Flat, factor: Fraction) -> Flat:
        """Elementwise multiplication by a constant."""
        return self.each(value, lambda t: self.terms.scale(t, factor))

    def packed(self, value: Flat, origin: Node) -> Flat:
        """The same elements as one term, where nothing can be said about the parts."""
        term = value.whole
        if term is not None and value.numel == self.terms.numel[term]:
            return value
        size = value.numel
        number = self.terms.number("pack", (), (Operand(value, ()),), size, origin.name)
        return whole(number, size)

    def count(self, term: int, share: Size, node: Node) -> None:
        """Note that a collective sends this part of a term."""
        self.traffic[term] = self.traffic.get(term, 0) + share
        self.carriers.setdefault(term, []).append(self.stands_for.get(node, node))

    def write(self, node: Node, value: Flat) -> None:
        """Replace what a buffer holds; all of it becomes unknown where it cannot be told which part is written."""
        try:
            self.store.write(node, value)
        except UndecidedError:
            root = self.store.root(node)
            operands = (Operand(self.store.value(root), ()), Operand(value, ()))
            size = self.store.value(root).numel
            self.store.hold(root, whole(self.terms.number("write", (), operands, size, node.name), size))

    def opaque(self, node: Node) -> None:
        """A term for an operator that nothing is known about but its schema."""
        effect = effects.effect_of(node)
        written, shared = effects.written_nodes(node), effects.aliased_nodes(node)
        tensor = isinstance(node.meta.get("val"), torch.Tensor)
        if shared and not written and tensor and isinstance(self.store.value(shared[0]), Flat):
            self.store.is_view(node, OpaqueView(shared[0], self, node))
            return
        self.finish(node, self.call(node, effect), written)
        if effect is Effect.BARRIER:
            self.effects.append((f"the effect of {node.target}", node.name, self.store.value(node)))

    def call(self, node: Node, effect: Effect) -> int:
        """The number of the term that a call computes."""
        operands: list[int | Operand] = []
        attributes: list[Hashable] = [name_of(node.target, functional=True)]
        attributes += [self._plain(value, operands) for value in _arguments(node)]
        if effect in (Effect.RANDOM, Effect.BARRIER):
            self._draws += 1
            attributes.append(self._draws)
        value = node.meta.get("val")
        size = numel(value) if isinstance(value, torch.Tensor) else 1
        return self.terms.number("call", tuple(attributes), tuple(operands), size, node.name)

    def finish(self, node: Node, term: int, written: Sequence[Node]) -> None:
        """Give a node, and the buffers it writes, the parts of the term it computes."""
        value = node.meta.get("val")
        if len(written) == 1 and isinstance(value, torch.Tensor) and written[0] in effects.aliased_nodes(node):
            self.write(written[0], whole(term, numel(value)))
            self.store.is_same(node, written[0])
            return
        for i, target in enumerate(written):
            self.write(target, self._part(term, ("written", i), metadata.tensor_of(target), node))
        if isinstance(value, torch.Tensor):
            self.store.hold(node, whole(term, numel(value)))
        elif isinstance(value, (list, tuple)):
            parts = (self._part(term, i, v, node) if isinstance(v, torch.Tensor) else term for i, v in enumerate(value))
            self.store.hold(node, written if len(written) == len(value) else tuple(parts))
        else:
            self.store.hold(node, term)

    def _part(self, term: int, which: Hashable, value: torch.Tensor, node: Node) -> Flat:
        size = numel(value)
        return whole(self.terms.number("item", (which,), (term,), size, node.name), size)

    def _plain(self, value: Any, operands: list[int | Operand]) -> Hashable:
        """An argument as something that compares by value; tensors go to the operands and leave their place."""
        if isinstance(value, Node):
            return self._plain_node(value, operands)
        if isinstance(value, (list, tuple)):
            return tuple(self._plain(v, operands) for v in value)
        if isinstance(value, slice):
            return ("slice", *(self._plain(v, operands) for v in (value.start, value.stop, value.step)))
        if isinstance(value, dict):
            return tuple((key, self._plain(v, operands)) for key, v in sorted(value.items()))
        if isinstance(value, (bool, float)):
            return type(value).__name__, repr(value)
        if isinstance(value, torch.SymInt):
            return exact(value)  # type: ignore[no-any-return]
        return value if isinstance(value, Hashable) else repr(value)

    def _plain_node(self, node: Node, operands: list[int | Operand]) -> Hashable:
        value = node.meta.get("val")
        if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
            return exact(value)  # type: ignore[no-any-return]
        held = self.parts(node)
        tensors = value if isinstance(value, (list, tuple)) else (value,)
        parts = held if isinstance(held, tuple) else (held,)
        for tensor, part in zip(tensors, parts, strict=True):
            shape = tuple(map(exact, tensor.shape)) if isinstance(tensor, torch.Tensor) else ()
            operands.append(Operand(part, shape) if isinstance(part, Flat) else part)
        return "operands", len(parts)


@dataclass(frozen=True)
class OpaqueView:
    """A view in a way not known: it changes with its parent, and a write through it may change all of its parent."""

    parent: Node
    reader: Reader
    node: Node

    def seen(self, shown: Flat) -> Flat:
        """The operator applied to its parent as it is now."""
        term = self.reader.call(self.node, Effect.PURE)
        return whole(term, self.reader.terms.numel[term])

    def written(self, shown: Flat, part: Flat) -> Flat:
        """Not known."""
        raise UndecidedError


def name_of(target: Any, *, functional: bool = False) -> str:
    """`namespace::operator`; with `functional`, the overload too and an in-place operator under its other name."""
    if not isinstance(target, OpOverload):
        return str(target)
    name, _, overload = str(target.name()).partition(".")
    if not functional:
        return name
    return f"{name.removesuffix('_')}.{overload}"


def _arguments(node: Node) -> Iterable[Any]:
    """All arguments, defaults filled in, so that it does not matter how a call is written."""
    if isinstance(node.target, OpOverload):
        return [ops.argument(node, name) for name in _formal_names(node.target)]
    return (*node.args, dict(node.kwargs))


@cache
def _formal_names(overload: OpOverload) -> tuple[str, ...]:
    return tuple(formal.name for formal in formals(overload))
