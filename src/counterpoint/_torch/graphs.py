"""Graphs: names, order and erasure, so that a change can be taken back to the letter."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from counterpoint._torch.operators import once_an_operator


def forget_names(graph: Graph) -> None:
    """Free the names of erased nodes, which a graph otherwise keeps taken (2.11 on). The graph must be empty."""
    from torch.fx.graph import _Namespace

    graph._graph_namespace = _Namespace()


class NameLog:
    """Remembers which names a graph gives out from now on, so that they can be given out again (2.11 on).

    The counters are overlaid, not copied: opening, keeping and dropping cost as much as there are new names.
    """

    def __init__(self, graph: Graph) -> None:
        self._names = graph._graph_namespace
        self._counters = self._names._base_count
        self._names._base_count = self._new = _Counters(self._counters)

    def keep(self) -> None:
        """Make the new names permanent."""
        self._counters.update(self._new)
        self._names._base_count = self._counters

    def drop(self, made: Iterable[Node]) -> None:
        """Forget the new names, those of these nodes; the next node is named as if they had never been."""
        for node in made:
            self._names._obj_to_name.pop(node, None)
            self._names._used_names.discard(node.name)
        self._names._base_count = self._counters


class _Counters(dict[str, int]):
    """New counters over old ones; a count that nobody has is 0."""

    def __init__(self, old: dict[str, int]) -> None:
        super().__init__()
        self._old = old

    def __missing__(self, key: str) -> int:
        # The counters were a defaultdict in some versions.
        return self._old.get(key, 0)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else self._old.get(key, default)


def usual_name(target: Any) -> str | None:
    """What a graph calls a call of this target before it counts (2.11 on); None where it finds that out itself.

    A graph asks this anew for every node, which is a good part of making one.
    """
    if target is operator.getitem:
        return "getitem"
    return _usual_name(target) if isinstance(target, OpOverload) else None


@once_an_operator
def _usual_name(overload: OpOverload) -> str:
    return Graph()._target_to_str(overload)


def place_of(node: Node) -> tuple[int, ...]:
    """Where the node stands: larger means later. Only moving the node itself changes it (2.11 on)."""
    return node._sort_key  # type: ignore[no-any-return]


def is_erased(node: Node) -> bool:
    """Whether the node has been taken out of its graph (2.11 on)."""
    return bool(node._erased)


def bring_back(node: Node, before: Node) -> None:
    """Undo `Graph.erase_node`, but for the arguments, which the caller sets afterwards (2.11 on)."""
    graph = node.graph
    node._erased = False
    before.prepend(node)
    graph._len += 1
    graph._find_nodes_lookup_table.insert(node)


def graph_size(graph: Graph) -> tuple[int, int]:
    """Nodes in the graph and names ever given: one of them changes whenever a node is made or erased (2.11 on)."""
    return graph._len, len(graph._graph_namespace._used_names)


def copy_graph(gm: GraphModule) -> GraphModule:
    """A copy with its own nodes, their metadata shared; `copy.deepcopy` would copy fake tensors too."""
    graph = Graph()
    output: Any = graph.graph_copy(gm.graph, {}, return_output_node=True)
    if output is not None:
        result, old = output
        graph.output(result).meta.update(old.meta)
    return GraphModule(gm, graph, type(gm).__name__)
