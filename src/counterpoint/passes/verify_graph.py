"""Verify the graph at one point of a pipeline, whatever the level of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from counterpoint.ir import verify
from counterpoint.options import option
from counterpoint.passes.base import Pass, PassContext


@dataclass(frozen=True, kw_only=True)
class VerifyGraph(Pass):
    """Fails unless the graph is a valid distributed program at this point of the pipeline.

    Does: runs the verifier on the graph as it stands here, without a look at what it was before.

    Fires when: always, also where the run itself verifies nothing (`verify="off"`).

    Before and after: the same graph.

    Never: changes the graph, or says anything about a collective.
    """

    name: ClassVar[str] = "verify-graph"

    level: Literal["structural", "full"] = option("full", help="how much is checked; full also recomputes metadata")

    def run(self, context: PassContext) -> None:
        """Verify."""
        verify.check(context.gm, groups=context.groups, level=self.level, where=f"pass {self.text}")
