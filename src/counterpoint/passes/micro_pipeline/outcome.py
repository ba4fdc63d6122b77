"""What becomes of the nodes that a pipelined operator stands for, whichever operator it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch.fx import Node

from counterpoint.passes.emitting import GraphEmit
from counterpoint.passes.micro_pipeline.axes import is_fold, is_view, shape_of
from counterpoint.passes.micro_pipeline.gathers import is_returned
from counterpoint.passes.micro_pipeline.layout import check_layout, shaped


@dataclass
class Outcome:
    """What becomes of old nodes."""

    results: dict[Node, Node] = field(default_factory=dict)
    """New nodes by the old ones whose users they get."""
    gone: list[Node] = field(default_factory=list)
    """Old nodes that go where nothing else uses them."""

    def keep(self, start: Node, old: Node, new: Node) -> None:
        """The new node stands for the old result, and for the start where the graph returns that unwaited."""
        self.results[old] = new
        if is_returned(start):
            self.results[start] = new


def product_results(emit: GraphEmit, matmul: Node, part: Node) -> Mapping[Node, Node]:
    """What stands for a matmul, and for the views of it that look as the part does."""
    if shape_of(part) == shape_of(matmul):
        return {matmul: check_layout(emit, part, matmul)}
    alike = [user for user in matmul.users if is_fold(user) and shape_of(user) == shape_of(part)]
    results = {user: check_layout(emit, part, user) for user in alike}
    if len(alike) < len(matmul.users):
        results[matmul] = check_layout(emit, shaped(emit, part, shape_of(matmul)), matmul)
    return results


def is_needed(node: Node, besides: frozenset[Node]) -> bool:
    """Whether something other than these nodes uses the node, be it through views."""
    frontier = [node]
    while frontier:
        for user in frontier.pop().users:
            if user in besides:
                continue
            if user.op != "call_function" or not user.users or not is_view(user):
                return True
            frontier.append(user)
    return False
