"""Verify the graph at one point of a pipeline, whatever the level of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from counterpoint.passes.base import Pass, PassContext


@dataclass(frozen=True, kw_only=True)
class VerifyGraph(Pass):
    """Fails the pipeline at this point unless the graph is a valid distributed program.

    Does: runs the verifier on the graph as it stands here, without a look at what it was before.

    Fires when: always, also where the run itself verifies nothing (`verify="off"`).

    Before and after: the same graph.

    Never: changes the graph, or says anything about a collective.
    """

    name: ClassVar[str] = "verify-graph"

    def run(self, context: PassContext) -> None:
        """Verify."""
        context.graph.lint()
