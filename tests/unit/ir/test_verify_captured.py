"""Graphs of real models: clean as they are captured, still right after torch's own bucketing, wrong after a mistake."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch._inductor.fx_passes import bucketing
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import GraphModule, Node

from counterpoint.capture.compiled import CompiledStage, capture_compiled
from counterpoint.capture.example_models import Decoder, DecoderConfig, parallelize_decoder
from counterpoint.capture.fully_shard import fully_shard
from counterpoint.capture.graph import CapturedGraph
from counterpoint.capture.replicate import replicate
from counterpoint.capture.world import World, fake_world
from counterpoint.ir.build import collectives_in
from counterpoint.ir.verify import Snapshot, verify

# torch's own tracing warns of what torch itself does.
pytestmark = pytest.mark.filterwarnings("ignore")
CONFIG = DecoderConfig(layers=1, kv_heads=8)


def _replicated(world: World) -> torch.nn.Module:
    return replicate(Decoder(CONFIG), device_mesh=world.mesh(world.size))


def _sharded(world: World) -> torch.nn.Module:
    return fully_shard(Decoder(CONFIG), mesh=world.mesh(world.size))


def _tensor_parallel(world: World) -> torch.nn.Module:
    return parallelize_decoder(Decoder(CONFIG), world.mesh(world.size, names=("tp",)))


KINDS: dict[str, Callable[[World], torch.nn.Module]] = {
    "replicate": _replicated,
    "shard": _sharded,
    "tensor": _tensor_parallel,
}


@cache
def captured(kind: str, size: int, stage: CompiledStage = "aot", dynamic: bool = False) -> tuple[CapturedGraph, ...]:
    with fake_world(size) as world:
        tokens = torch.zeros(4, 16, dtype=torch.long)
        return tuple(capture_compiled(KINDS[kind](world), (tokens,), stage=stage, dynamic=dynamic))


@pytest.mark.parametrize(
    ("kind", "size", "stage", "dynamic"),
    [
        ("replicate", 8, "aot", False),
        ("shard", 64, "aot", False),
        ("shard", 8, "post_grad", False),
        ("tensor", 8, "post_grad", False),
        ("replicate", 2, "aot", True),
    ],
)
def test_captured_graphs_are_clean(kind: str, size: int, stage: CompiledStage, dynamic: bool) -> None:
    graphs = captured(kind, size, stage, dynamic)
    assert len(graphs) == 2
    assert any(collectives_in(graph.gm.graph) for graph in graphs)
    for graph in graphs:
        reference = Snapshot.of(graph.gm, graph.groups)
        assert reference.known == frozenset()
        assert verify(graph.gm, reference=reference) == ()


def _bucketed(graph: CapturedGraph, *passes: Callable[..., None]) -> GraphModule:
    gm = copy.deepcopy(graph.gm)
    with fake_world(graph.world_size):
        for bucket in passes:
            bucket(gm, lambda _: 1000.0)
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten._foreach_copy_.default):
        # It returns nothing, and torch 2.11 does not say so.
        node.meta.setdefault("val", None)
    stable_topological_sort(gm.graph)
    return gm


@pytest.mark.parametrize(
    ("kind", "bucket"),
    [
        ("replicate", bucketing.bucket_all_reduce),
        ("shard", bucketing.bucket_all_gather),
        ("shard", bucketing.bucket_reduce_scatter),
    ],
)
def test_torchs_own_bucketing_is_found_right(kind: str, bucket: Callable[..., None]) -> None:
    merged = 0
    for graph in captured(kind, 8):
        after = _bucketed(graph, bucket)
        merged += len(collectives_in(graph.gm.graph)) - len(collectives_in(after.graph))
        assert verify(after, reference=Snapshot.of(graph.gm, graph.groups)) == ()
    assert merged > 5


def _swap_results(nodes: list[Node]) -> None:
    """Hand the results of two collectives of one shape to each other's users."""
    shapes: dict[tuple[int, ...], Node] = {}
    for node in nodes:
        shape = tuple(node.meta["val"].shape)
        other = shapes.setdefault(shape, node)
        if other is not node:
            first, second = next(iter(other.users)), next(iter(node.users))
            first.args, second.args = (node,), (other,)
            return
    raise AssertionError("no two collectives of one shape")


def _change_group(nodes: list[Node]) -> None:
    nodes[-1].args = (*nodes[-1].args[:-1], "elsewhere")


def _change_reduction(nodes: list[Node]) -> None:
    nodes[0].args = (nodes[0].args[0], "max", *nodes[0].args[2:])


def _drop(nodes: list[Node]) -> None:
    wait = next(iter(nodes[0].users))
    wait.replace_all_uses_with(nodes[0].args[0])
    wait.graph.erase_node(wait)
    nodes[0].graph.erase_node(nodes[0])


def _forget_wait(nodes: list[Node]) -> None:
    wait = next(iter(nodes[0].users))
    wait.replace_all_uses_with(nodes[0])
    wait.graph.erase_node(wait)


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        (_swap_results, {"value-changed", "unproven"}),
        (_change_group, {"group-changed"}),
        (_change_reduction, {"reduce-op-changed"}),
        (_drop, {"not-reduced"}),
        (_forget_wait, {"never-waited"}),
    ],
)
def test_mistakes_in_a_captured_graph_are_found(mistake: Callable[[list[Node]], None], expected: set[str]) -> None:
    backward = captured("replicate", 8)[-1]
    wrong = copy.deepcopy(backward.gm)
    mistake(collectives_in(wrong.graph))
    wrong.graph.lint() if mistake is not _swap_results else stable_topological_sort(wrong.graph)
    found = verify(wrong, reference=Snapshot.of(backward.gm, backward.groups))
    assert {finding.code for finding in found} & expected, found
