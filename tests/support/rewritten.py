"""Rewriting a graph by a pipeline and running both on real ranks: what every differential test of a pass does."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule

from counterpoint.ir.build import GraphBuilder, collectives_in
from counterpoint.ir.samples import sample_inputs
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.passes.report import PassStatus
from tests.support.compare import Groups, compare
from tests.support.gloo import RanksByWorldSize


@dataclass(frozen=True)
class Rewritten:
    """What a pipeline made of a graph."""

    gm: GraphModule
    codes: tuple[str, ...]
    """For each collective of the input its verdict: the reason's code where it was left alone."""

    @property
    def left(self) -> int:
        """Collectives in the graph."""
        return len(collectives_in(self.gm.graph))


def rewrite(gm: GraphModule, builder: GraphBuilder, passes: str, **options: object) -> Rewritten:
    """A copy of the graph after the passes, none of which may fail."""
    after = copy.deepcopy(gm)
    chosen = CompileOptions.from_mapping({"verify": "full", "on_error": "raise", **options})
    report = run_pipeline(after, Pipeline.parse(passes), options=chosen, groups=builder.groups)
    assert all(record.status is PassStatus.DONE for record in report.passes)
    return Rewritten(after, tuple(entry.verdict.code or entry.verdict.kind.value for entry in report.ledger))


def check_on_ranks(
    ranks: RanksByWorldSize,
    world: int,
    gm: GraphModule,
    builder: GraphBuilder,
    passes: str,
    partitions: Groups | None = None,
    **options: object,
) -> Rewritten:
    """The rewrite, which gives the same bits as the original on every rank, on inputs of small whole numbers.

    `partitions` says what ranks outside of a group of the graph use in its place; without it every rank is in each.
    """
    after = rewrite(gm, builder, passes, **options)
    groups: Mapping[str, Sequence[int] | Sequence[Sequence[int]]] = partitions or dict(builder.groups)
    compare(ranks(world), gm, after.gm, sample_inputs(gm, world, seed=7), groups)
    return after
