"""Our pipeline as one custom pass of inductor's, in company with whatever pass the user has there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor import custom_graph_pass
from torch.fx import Graph, Node

from counterpoint.cost.capabilities import CapabilityTable
from counterpoint.inductor.guard import PassRun, run_guarded
from counterpoint.inductor.plan import Plan
from counterpoint.ir import ops
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.ops import Kind

# From 2.12; before, no pass was told whether the graph is for inference.
_INFERENCE_AWARE: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", None)

UserPass = Callable[..., None]


def user_passes(configured: Any) -> tuple[UserPass, ...]:
    """The passes that `post_grad_custom_post_pass` names: none, one, or (from 2.13) several."""
    if configured is None:
        return ()
    return tuple(configured) if isinstance(configured, (list, tuple)) else (configured,)


def _in_flight(node: Node) -> bool:
    """Whether the node starts something that must be waited for, or waits for it."""
    spec = ops.spec_of(node.target) if node.op == "call_function" else None
    return spec is not None and (spec.waits or spec.kind is Kind.WAIT)


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
        for_flights: Mapping[str, tuple[Any, Any]] = MappingProxyType({}),
    ) -> None:
        self.plan = plan
        self.before = before
        self.groups = groups if groups is not None else GroupTable()
        self.layout = layout
        self.capabilities = capabilities if capabilities is not None else CapabilityTable()
        self.for_flights = for_flights
        """Settings of inductor for the rest of the compile: where something is in flight, and where nothing is."""
        self.flies = False
        self.run = PassRun(role)

    def __call__(self, graph: Graph) -> None:
        for theirs in self.before:
            if _INFERENCE_AWARE is not None and isinstance(theirs, _INFERENCE_AWARE):
                theirs = functools.partial(theirs, is_inference=self.run.name == "inference")
            theirs(graph)
        run_guarded(graph, self.plan, self.groups, self.run, self.capabilities)
        # Called for every graph that a graph calls too: once one of them has something in flight, all keep the fences.
        self.flies = self.flies or any(_in_flight(node) for node in graph.nodes)
        for key, (fenced, free) in self.for_flights.items():
            # The setting is patched for this compile only: what it was comes back behind it.
            setattr(inductor_config, key, fenced if self.flies else free)

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
