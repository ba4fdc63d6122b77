"""Generated graphs and the verifier: valid ones pass, and what it lets pass computes the same on simulated ranks."""

from __future__ import annotations

import copy

import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from counterpoint.errors import EvaluationError
from counterpoint.ir import ops
from counterpoint.ir.evaluate import evaluate
from counterpoint.ir.verify import Snapshot, verify, verify_ranks
from tests.support.strategies import Case, distributed_graphs

relaxed = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@relaxed
@given(distributed_graphs())
def test_valid_graphs_are_clean_and_equal_to_themselves(case: Case) -> None:
    reference = Snapshot.of(case.gm, case.groups)
    assert reference.known == frozenset()
    assert verify(copy.deepcopy(case.gm), reference=reference) == ()


@relaxed
@given(distributed_graphs())
def test_one_graph_on_all_ranks_fits_together(case: Case) -> None:
    # Every rank finds its own group under each name.
    tables = {
        rank: {name: tuple(r + rank - rank % len(ranks) for r in ranks) if name == "near" else ranks}
        for rank in range(case.world_size)
        for name, ranks in [("world", tuple(range(case.world_size)))]
    }
    if all(ops.argument(n, "group_name") == "world" for n in case.gm.graph.nodes if ops.is_collective(n)):
        assert verify_ranks(dict.fromkeys(range(case.world_size), case.gm), tables) == ()


def _mutated(case: Case, data: st.DataObject) -> GraphModule | None:
    """The graph with one operand replaced by another value of its form, or one argument of a collective changed."""
    gm = copy.deepcopy(case.gm)
    nodes = list(gm.graph.nodes)
    user = data.draw(st.sampled_from([n for n in nodes if n.op != "placeholder"]))
    spec = ops.spec_of(user.target) if user.op == "call_function" else None
    if spec is not None and spec.reduce_op and data.draw(st.booleans()):
        user.update_arg(1, "max" if ops.argument(user, "reduce_op") != "max" else "sum")
        return gm
    operands = [n for n in user.all_input_nodes if isinstance(n.meta["val"], torch.Tensor)]
    if not operands:
        return None
    old = data.draw(st.sampled_from(operands))
    form = old.meta["val"]
    others = [n for n in nodes[: nodes.index(user)] if n is not old and _alike(n, form)]
    if not others:
        return None
    user.replace_input_with(old, data.draw(st.sampled_from(others)))
    return gm


def _alike(node: Node, form: torch.Tensor) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    return (value.dtype, list(map(str, value.shape))) == (form.dtype, list(map(str, form.shape)))


@settings(relaxed, max_examples=120)
@given(distributed_graphs(), st.data())
def test_what_passes_computes_the_same(case: Case, data: st.DataObject) -> None:
    after = _mutated(case, data)
    assume(after is not None)
    assert after is not None
    if verify(after, reference=Snapshot.of(case.gm, case.groups)):
        return
    try:
        old, new = (evaluate(gm, case.inputs, case.groups) for gm in (case.gm, after))
    except EvaluationError:
        return
    for before, now in zip(old, new, strict=True):
        for left, right in zip(before, now, strict=True):
            assert torch.equal(left.float(), right.float())
