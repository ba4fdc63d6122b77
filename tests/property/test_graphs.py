"""Generated graphs: they are valid, every collective in them is read, and evaluation is repeatable."""

from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from torch.fx import Node

from counterpoint.ir.collective import CommBlock, get_all_comm_blocks
from counterpoint.ir.evaluate import evaluate
from counterpoint.ir.ops import argument, is_collective
from tests.support.strategies import GROUPS, MOVED_ONLY, Case, distributed_graphs

C10D = torch.ops._c10d_functional

relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@relaxed
@given(distributed_graphs())
def test_every_collective_of_a_valid_graph_is_a_block(case: Case) -> None:
    blocks = get_all_comm_blocks(case.gm.graph)
    assert len(blocks) == sum(map(is_collective, case.gm.graph.nodes))
    assert all(isinstance(block, CommBlock) for block in blocks), list(map(str, blocks))


def facts(case: Case) -> set[Any]:
    """What a generated graph holds."""
    values = [n.meta["val"] for n in case.gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    collectives = [node for node in case.gm.graph.nodes if is_collective(node)]
    found: set[Any] = {value.dtype for value in values} | {node.target for node in collectives}
    found |= {argument(node, "group_name") for node in collectives}
    found |= {"symbolic" for v in values if any(isinstance(size, torch.SymInt) for size in v.shape)}
    found |= {"empty" for value in values if 0 in [size for size in value.shape if isinstance(size, int)]}
    found |= {"scalar" for value in values if value.dim() == 0}
    chained = (node for node in collectives for source in ancestors(node) if is_collective(source))
    return found | {"chain" for _ in chained}


def ancestors(node: Node) -> set[Node]:
    found: set[Node] = set()
    frontier = [node]
    while frontier:
        new = set(frontier.pop().all_input_nodes) - found
        found |= new
        frontier.extend(new)
    return found


OPERATORS = [
    C10D.all_reduce,
    C10D.all_reduce_,
    C10D.all_reduce_coalesced,
    C10D.all_gather_into_tensor,
    C10D.all_gather_into_tensor_coalesced,
    C10D.reduce_scatter_tensor,
    C10D.reduce_scatter_tensor_coalesced,
    C10D.all_to_all_single,
    C10D.broadcast,
    C10D.broadcast_,
]


def test_everything_that_strategies_promise_is_generated() -> None:
    wanted: set[Any] = {torch.float32, torch.bfloat16, torch.int64, *MOVED_ONLY, *GROUPS[4]}
    wanted |= {packet.default for packet in OPERATORS} | {"symbolic", "empty", "scalar", "chain"}
    seen: set[Any] = set()

    @settings(relaxed, max_examples=150, database=None, derandomize=True, phases=[Phase.generate])
    @given(distributed_graphs())
    def look(case: Case) -> None:
        seen.update(facts(case))

    look()
    assert wanted <= seen


@relaxed
@given(distributed_graphs())
def test_evaluation_gives_what_the_metadata_promises(case: Case) -> None:
    once, again = (evaluate(case.gm, case.inputs, case.groups) for _ in range(2))
    promised = [node.meta["val"] for node in case.gm.graph.find_nodes(op="output")[0].args[0]]
    for first, second in zip(once, again, strict=True):
        for value, repeated, fake in zip(first, second, promised, strict=True):
            assert torch.equal(value.float(), repeated.float())
            assert value.dtype is fake.dtype
            assert all(a == b for a, b in zip(value.shape, fake.shape, strict=True) if isinstance(b, int))
