"""All that one can tell about a graph, for comparing it with itself before and after."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph


def picture(graph: Graph) -> list[Any]:
    """Text, identity and order of nodes, arguments, users in order, metadata, and the names still to be given."""
    names = graph._graph_namespace
    return [
        str(graph),
        len(graph.nodes),
        [
            (
                id(node),
                node.name,
                str((node.args, node.kwargs)),
                [source.name for source in node.all_input_nodes],
                [user.name for user in node.users],
                {key: id(value) for key, value in node.meta.items()},
            )
            for node in graph.nodes
        ],
        set(names._used_names),
        dict(names._base_count),
        {name for node, name in names._obj_to_name.items()},
    ]
