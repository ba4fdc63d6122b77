"""Our pipeline as one custom pass of inductor's, in company with whatever pass the user has there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._inductor import custom_graph_pass
from torch.fx import Graph

from counterpoint.cost.capabilities import CapabilityTable
from counterpoint.inductor.guard import PassRun, run_guarded
from counterpoint.inductor.plan import Plan
from counterpoint.ir.groups import GroupTable

# From 2.12; before, no pass was told whether the graph is for inference.
_INFERENCE_AWARE: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", None)

UserPass = Callable[..., None]


def user_passes(configured: Any) -> tuple[UserPass, ...]:
    """The passes that `post_grad_custom_post_pass` names: none, one, or (from 2.13) several."""
    if configured is None:
        return ()
    return tuple(configured) if isinstance(configured, (list, tuple)) else (configured,)


class CounterpointPass(custom_graph_pass.CustomGraphPass):
    """Runs the user's passes and then ours, so that our ledger accounts for what will really be generated.

    One object serves one graph: it knows the graph's groups, and leaves what it found in `run`.
    """

    def __init__(
        self,
        plan: Plan,
        before: tuple[UserPass, ...],
        groups: GroupTable | None = None,
        layout: str = "",
        role: str = "graph",
        capabilities: CapabilityTable | None = None,
    ) -> None:
        self.plan = plan
        self.before = before
        self.groups = groups if groups is not None else GroupTable()
        self.layout = layout
        self.capabilities = capabilities if capabilities is not None else CapabilityTable()
        self.run = PassRun(role)

    def __call__(self, graph: Graph) -> None:
        for theirs in self.before:
            if _INFERENCE_AWARE is not None and isinstance(theirs, _INFERENCE_AWARE):
                theirs = functools.partial(theirs, is_inference=self.run.name == "inference")
            theirs(graph)
        run_guarded(graph, self.plan, self.groups, self.run, self.capabilities)

    def __deepcopy__(self, memo: dict[int, Any]) -> CounterpointPass:
        # Torch copies settings freely; a copy would leave its report where nobody looks.
        return self

    def uuid(self) -> Any | None:
        """Part of the cache key: our code and options, the shape of the groups, what their
        ranks can do with each other, and the user's passes.

        None, so no caching at all, where one of the passes cannot say what identifies it.
        """
        theirs = []
        for one in self.before:
            identity = one.uuid() if isinstance(one, custom_graph_pass.CustomGraphPass) else None
            if not identity:
                return None
            theirs.append(identity)
        if self.plan.identity is None:
            return None
        return ("counterpoint", self.plan.identity, self.layout, self.capabilities.text, *theirs)
