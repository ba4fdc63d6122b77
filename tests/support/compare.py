"""Graphs on real ranks: run one, or run an original and its rewrite and compare what they return and overwrite.

`groups` says which process group each name in a graph stands for: one tuple of ranks, or several disjoint ones, of
which each rank takes its own. `{"tp": ((0, 1), (2, 3)), "world": (0, 1, 2, 3)}` is a 2-D mesh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch.utils import _pytree as pytree

from counterpoint.runtime.pipelined import operators  # noqa: F401  graphs may hold them
from tests.support import worker
from tests.support.gloo import PerRank, Ranks
from tests.support.wire import dump_graph, load_graph

Groups = Mapping[str, Sequence[int] | Sequence[Sequence[int]]]
GROUP_ARGUMENTS = frozenset({"group_name", "group"})


@dataclass(frozen=True)
class Tolerance:
    """How far two tensors may lie apart when a rewrite changes the order of a sum."""

    rtol: float
    atol: float


@dataclass(frozen=True)
class Run:
    """What a graph left on one rank: its outputs, flattened, and its inputs after the run."""

    outputs: list[Any]
    inputs: list[Any]


def run_graph(
    ranks: Ranks,
    graph: fx.GraphModule | Sequence[fx.GraphModule],
    inputs_by_rank: Sequence[Sequence[Any]],
    groups: Groups | None = None,
) -> list[Run]:
    """The graph on every rank, interpreted eagerly; a sequence of graphs gives each rank its own."""
    data = _shipped(graph, ranks.world_size)
    return ranks.run(_run_on_rank, data, PerRank(list(inputs_by_rank)), _partitions(groups))


def compare(
    ranks: Ranks,
    original: fx.GraphModule | Sequence[fx.GraphModule],
    rewritten: fx.GraphModule | Sequence[fx.GraphModule],
    inputs_by_rank: Sequence[Sequence[Any]],
    groups: Groups | None = None,
    *,
    tolerance: Tolerance | None = None,
) -> list[Run]:
    """AssertionError unless both graphs agree on every rank, bit by bit or within `tolerance`; the original's runs."""
    before = run_graph(ranks, original, inputs_by_rank, groups)
    after = run_graph(ranks, rewritten, inputs_by_rank, groups)
    differences = [
        f"rank {rank}, {line}"
        for rank, (one, other) in enumerate(zip(before, after, strict=True))
        for line in _differences(one, other, tolerance)
    ]
    if differences:
        raise AssertionError("the rewritten graph differs:\n  " + "\n  ".join(differences))
    return before


# -- on the rank ------------------------------------------------------------------------------------------------------


def _run_on_rank(data: bytes, inputs: Sequence[Any], partitions: Mapping[str, tuple[tuple[int, ...], ...]]) -> Run:
    gm = load_graph(data)
    names = realise_groups(partitions)
    rename_groups(gm, names)
    values = [names.get(value, value) if isinstance(value, str) else value for value in inputs]
    # A process group is used by running the graph, never while a test builds it: no gradient, no tracing.
    with torch.no_grad():
        outputs = pytree.tree_leaves(gm(*values))
    return Run([_detached(value) for value in outputs], [_detached(value) for value in values])


def realise_groups(partitions: Mapping[str, tuple[tuple[int, ...], ...]]) -> dict[str, str]:
    """Name in the graph -> name of this rank's process group. All ranks create the groups, in the same order."""
    names: dict[str, str] = {}
    for name in sorted(partitions):
        for members in partitions[name]:
            group = worker.group_of(name, members)
            if dist.get_rank() in members:
                names[name] = group.group_name
    return names


def rename_groups(gm: fx.GraphModule, names: Mapping[str, str]) -> None:
    """Put this process's group names where the operators' schemas have a group."""
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                _rename_in(node, names)
            module.recompile()


def _rename_in(node: fx.Node, names: Mapping[str, str]) -> None:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return
    args = list(node.args)
    for position, argument in enumerate(schema.arguments):
        if argument.name not in GROUP_ARGUMENTS:
            continue
        if position < len(args) and isinstance(args[position], str):
            args[position] = names.get(args[position], args[position])
        elif isinstance(node.kwargs.get(argument.name), str):
            given = str(node.kwargs[argument.name])
            node.kwargs = {**node.kwargs, argument.name: names.get(given, given)}
    node.args = tuple(args)


def _detached(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


# -- in the test ------------------------------------------------------------------------------------------------------


def _shipped(graph: fx.GraphModule | Sequence[fx.GraphModule], world_size: int) -> Any:
    if isinstance(graph, fx.GraphModule):
        return dump_graph(graph)
    if len(graph) != world_size:
        raise ValueError(f"{len(graph)} graphs for {world_size} ranks")
    return PerRank([dump_graph(one) for one in graph])


def _partitions(groups: Groups | None) -> dict[str, tuple[tuple[int, ...], ...]]:
    result: dict[str, tuple[tuple[int, ...], ...]] = {}
    for name, value in (groups or {}).items():
        one_group = all(isinstance(member, int) for member in value)
        result[name] = (tuple(value),) if one_group else tuple(tuple(part) for part in value)  # type: ignore
    return result


def _differences(one: Run, other: Run, tolerance: Tolerance | None) -> list[str]:
    lines: list[str] = []
    for kind, left, right in (("output", one.outputs, other.outputs), ("input", one.inputs, other.inputs)):
        if len(left) != len(right):
            lines.append(f"{len(left)} {kind}s against {len(right)}")
            continue
        found = [difference(a, b, tolerance) for a, b in zip(left, right, strict=True)]
        lines += [f"{kind} {place}: {text}" for place, text in enumerate(found) if text is not None]
    return lines


def difference(one: Any, other: Any, tolerance: Tolerance | None = None) -> str | None:
    """How two values differ, or None. Tensors agree in dtype, shape and every bit (NaN equals the same NaN)."""
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return None if type(one) is type(other) and one == other else f"{one!r} against {other!r}"
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"{one.dtype} {list(one.shape)} against {other.dtype} {list(other.shape)}"
    if tolerance is not None:
        try:
            torch.testing.assert_close(other, one, rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True)
        except AssertionError as error:
            return str(error)
        return None
    unequal = _bits(one) != _bits(other)
    return f"{int(unequal.sum())} of {unequal.numel()} bytes differ: {one} against {other}" if unequal.any() else None


def _bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)
