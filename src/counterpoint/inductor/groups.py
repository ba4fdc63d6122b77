"""From the names of process groups in a graph to their ranks in this process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.fx import GraphModule, Node

from counterpoint.errors import GroupError
from counterpoint.ir import ops
from counterpoint.ir.groups import GroupTable, group_of


def graph_modules(gm: GraphModule) -> tuple[GraphModule, ...]:
    """The module and the graph modules inside that its graph calls."""
    return tuple(module for module in gm.modules() if isinstance(module, GraphModule))


def collectives(gm: GraphModule) -> tuple[Node, ...]:
    """Every collective that the module starts, in its graph and in the graphs it calls."""
    return tuple(node for m in graph_modules(gm) for node in m.graph.nodes if ops.is_collective(node))


def live_groups(starts: tuple[Node, ...]) -> GroupTable:
    """The ranks of every named group that these collectives use; a name that means nothing here is an error."""
    return GroupTable({name: _ranks_of(name, node) for name, node in _named_groups(starts)})


def _named_groups(starts: tuple[Node, ...]) -> Iterator[tuple[str, Node]]:
    seen: set[str] = set()
    for node in starts:
        spec = ops.spec_of(node.target)
        name = group_of(ops.argument(node, spec.group)).name if spec and spec.group else None
        if name is not None and name not in seen:
            seen.add(name)
            yield name, node


def _ranks_of(name: str, node: Node) -> tuple[int, ...]:
    where = f"node {node.name}"
    if not dist.is_initialized():
        raise GroupError(
            f"the graph communicates in group {name!r}, and no process group is initialised",
            where=where,
            next_step="call torch.distributed.init_process_group() before the first call of the compiled model",
        )
    try:
        group = _resolve(name)
    except (RuntimeError, ValueError, KeyError) as error:
        raise GroupError(
            f"the graph communicates in group {name!r}, which does not exist in this process",
            where=where,
            next_step="create the group on every rank before compiling, and pass its group_name",
        ) from error
    return tuple(dist.get_process_group_ranks(group))


# Named as text, because its parameter type is another one in each version.
_resolve: Callable[[str], dist.ProcessGroup] = getattr(c10d, "_resolve_process_group")  # noqa: B009


def layout(groups: Mapping[str, tuple[int, ...]]) -> str:
    """What decisions may depend on about the groups, in text that is equal on all ranks of a regular mesh.

    Ranks count from the group's first, so `[0, 4]` and `[1, 5]` are the same layout and share cache entries.
    """
    shapes = (f"{name}:{','.join(str(r - min(ranks)) for r in ranks)}" for name, ranks in groups.items())
    text = f"world {dist.get_world_size() if dist.is_initialized() else 1};" + ";".join(shapes)
    return hashlib.sha256(text.encode()).hexdigest()
