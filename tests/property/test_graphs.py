"""Generated graphs: they are valid, every collective in them is read, and evaluation is repeatable."""

import torch
from hypothesis import HealthCheck, given, settings

from counterpoint.ir.collective import CommBlock, get_all_comm_blocks
from counterpoint.ir.evaluate import evaluate
from counterpoint.ir.ops import is_collective
from tests.support.strategies import Case, distributed_graphs

relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@relaxed
@given(distributed_graphs())
def test_every_collective_of_a_valid_graph_is_a_block(case: Case) -> None:
    blocks = get_all_comm_blocks(case.gm.graph)
    assert len(blocks) == sum(map(is_collective, case.gm.graph.nodes))
    assert all(isinstance(block, CommBlock) for block in blocks), list(map(str, blocks))


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
