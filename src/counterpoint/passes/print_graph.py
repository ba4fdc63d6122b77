"""Show the graph in the middle of a pipeline."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

from counterpoint.ir.text import print_graph
from counterpoint.options import option
from counterpoint.passes.base import Pass, PassContext


@dataclass(frozen=True, kw_only=True)
class PrintGraph(Pass):
    """Writes the graph to standard error, as it is at this point of the pipeline.

    Does: prints the text form that `counterpoint opt` prints and `parse_graph` reads, under a line with the pass's
    own text, so that several prints can be told apart by their labels.

    Fires when: always.

    Before and after: the same graph.

    Never: changes the graph, or says anything about a collective.
    """

    name: ClassVar[str] = "print-graph"

    label: str = option("", help="a word to tell several prints of one pipeline apart")

    def run(self, context: PassContext) -> None:
        """Print."""
        sys.stderr.write(f"# {self.text}\n{print_graph(context.gm)}\n")
