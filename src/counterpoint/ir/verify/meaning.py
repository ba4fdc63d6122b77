"""What a graph computes and sends, as terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, GraphModule, Node

from counterpoint.ir import effects, metadata
from counterpoint.ir.effects import Effect
from counterpoint.ir.verify import communication, packed, pipelined, structure
from counterpoint.ir.verify.reader import Reader
from counterpoint.ir.verify.signature import output_leaves, output_node
from counterpoint.ir.verify.sizes import Size, UndecidedError, exact
from counterpoint.ir.verify.terms import Terms

_SINGLE = {**structure.HANDLERS, **communication.HANDLERS, **packed.HANDLERS}
_HANDLERS = {**_SINGLE, **pipelined.handlers_over(_SINGLE)}


@dataclass(frozen=True)
class Observed:
    """One thing that the outside sees of a graph."""

    what: str
    node: str
    value: Any
    """The elements of a tensor; anything comparable for what is no tensor."""


@dataclass(frozen=True)
class Meaning:
    """What a graph computes and sends."""

    terms: Terms
    observed: tuple[Observed, ...]
    traffic: Mapping[int, Size]
    """How often each collective term is sent."""
    carriers: Mapping[int, Sequence[Node]]
    """The nodes that send it."""

    @staticmethod
    def of(graph: Graph, terms: Terms, groups: Mapping[str, Sequence[int]]) -> Meaning:
        """Read a graph, with the numbers of terms that are known already."""
        reader = Reader(terms, groups)
        reader.read(graph, _HANDLERS)
        output = output_node(graph).name
        seen = [Observed(f"output {i}", *_leaf(reader, leaf, output)) for i, leaf in enumerate(output_leaves(graph))]
        seen += [Observed(*effect) for effect in reader.effects]
        return Meaning(terms, tuple(seen), reader.traffic, reader.carriers)


def _leaf(reader: Reader, leaf: Any, output: str) -> tuple[str, Any]:
    if not isinstance(leaf, Node):
        return output, repr(leaf)
    if leaf.op == "get_attr" and not metadata.has_value(leaf):
        # An object that torch hands through a graph, such as a device mesh.
        return leaf.name, f"attribute {leaf.target}"
    value = metadata.value_of(leaf)
    if hasattr(value, "node") and not hasattr(value, "shape"):
        return leaf.name, exact(value)
    try:
        return leaf.name, reader.parts(leaf)
    except UndecidedError:
        return leaf.name, reader.call(leaf, Effect.PURE)


def live_nodes(graph: Graph) -> set[Node]:
    """The nodes that an output or an effect needs."""
    frontier = [
        node
        for node in graph.nodes
        if node.op == "output" or effects.effect_of(node) in (Effect.MUTATES, Effect.BARRIER)
    ]
    live = set(frontier)
    while frontier:
        for operand in frontier.pop().all_input_nodes:
            if operand not in live:
                live.add(operand)
                frontier.append(operand)
    return live


def graph_of(graph: Graph | GraphModule) -> Graph:
    """Either form of argument."""
    return graph.graph if isinstance(graph, GraphModule) else graph
