"""Compiling with inductor's code generation, our pass inside, and a record of every graph, from the cache or not."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch.fx import GraphModule

from counterpoint.inductor.account import Account, in_compiled_autograd
from counterpoint.inductor.agreement import first_call
from counterpoint.inductor.capabilities import ASSEMBLIES
from counterpoint.inductor.fences import for_flights, values_now
from counterpoint.inductor.graph_pass import CounterpointPass, user_passes
from counterpoint.inductor.groups import collectives, graph_modules, layout, live_groups
from counterpoint.inductor.guard import PassRun, run_guarded
from counterpoint.inductor.lowering.scope import SCOPE
from counterpoint.inductor.lowering.state import claim
from counterpoint.inductor.plan import Plan
from counterpoint.inductor.sidecar import load, sidecar_path, store
from counterpoint.inductor.stable_keys import forget_mesh_hashes
from counterpoint.inductor.standstill import watched
from counterpoint.passes.report import PipelineReport

LOGGER = logging.getLogger("counterpoint.compile")
POST_PASS = "post_grad_custom_post_pass"


def compile_with_inductor(gm: GraphModule, example_inputs: Sequence[Any], plan: Plan) -> Callable[..., Any]:
    """Compile one graph of dynamo's. No setting made here outlasts our own compiles, lazy backwards included."""
    settings = dict(plan.patches)
    theirs: Any = settings.get(POST_PASS, getattr(inductor_config, POST_PASS))
    # The pass stands in the settings too, so that a cache above ours cannot mix our compiles with others.
    settings[POST_PASS] = CounterpointPass(plan, user_passes(theirs))
    fenced = plan.patches.keys() - plan.request.torch_settings.keys()
    compiler = GraphCompiler(plan, theirs, values_now(fenced), in_compiled_autograd())
    with _without_autograd_cache():
        compiled = compile_fx(gm, example_inputs, inner_compile=compiler, config_patches=settings)
    return cast(Callable[..., Any], compiled)


@contextlib.contextmanager
def _without_autograd_cache() -> Iterator[None]:
    """Switch off the cache that would skip our compiler, and with it the account of what was compiled.

    What takes long, generating and compiling code, is in the FX graph cache below it. Precompilation is left alone: it
    stores whole results in this cache and compiles each graph anew.
    """
    if getattr(functorch_config, "bundled_autograd_cache", False):
        yield
        return
    with functorch_config.patch(enable_autograd_cache=False, enable_remote_autograd_cache=False):
        if functorch_config.enable_autograd_cache:
            LOGGER.warning(
                "TORCHINDUCTOR_AUTOGRAD_CACHE=1 forces the AOT autograd cache on: graphs that it holds are "
                "loaded without a record. Unset it to have every compile accounted for"
            )
        yield


@dataclass(frozen=True)
class GraphCompiler:
    """Stands in for inductor's inner compiler: called with each forward and backward graph, on cache hits too."""

    plan: Plan
    user_pass: Any
    """What the user has at the place of our pass."""
    unfenced: Mapping[str, Any]
    """What the settings that we fence off were before: in force for graphs that do not communicate."""
    compiled_autograd: bool

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        starts, role = collectives(gm), self._role(kwargs)
        account = Account.open(self.plan, role, len(starts))
        groups = live_groups(starts)
        before = user_passes(self.user_pass)
        found = ASSEMBLIES.table(self.plan, groups, starts)
        ours = CounterpointPass(self.plan, before, groups, layout(groups), role, found, for_flights(self.unfenced))
        idle = not starts and not before
        forget_mesh_hashes(example_inputs)
        claim(gm)
        hits = counters["inductor"]["fxgraph_cache_hit"]
        settings = {POST_PASS: self.user_pass if idle else ours, **({} if starts else self.unfenced)}
        with inductor_config.patch(settings), SCOPE.active():
            compiled = compile_fx_inner(gm, example_inputs, **kwargs)
        cache = _cache_state(compiled, counters["inductor"]["fxgraph_cache_hit"] > hits)
        run, origin = self._account_for(gm, compiled, ours, cache) if starts else (ours.run, "none")
        record = account.close(run, origin=origin, cache=cache)
        launches = run.launches
        _wrap_calls(compiled, partial(watched, record=record, launches=launches, groups=groups))
        _ask_first(compiled, partial(first_call, plan=self.plan, graph=record.graph, launches=launches, groups=groups))
        return compiled

    def _role(self, kwargs: dict[str, Any]) -> str:
        if kwargs.get("is_backward") or self.compiled_autograd:
            return "backward"
        return "inference" if kwargs.get("is_inference") else "forward"

    def _account_for(self, gm: GraphModule, compiled: Any, ours: CounterpointPass, cache: str) -> tuple[PassRun, str]:
        """What the passes did to the graph, and how we know."""
        run, plan = ours.run, self.plan
        if cache == "hit":
            return self._recall(gm, compiled, ours)
        if not run.reports:
            run.problems.append(
                "torch did not run our passes: use_post_grad_passes is off, or another process compiles"
            )
            return run, "none"
        if cache == "miss" and plan.identity is not None:
            packed = {"reports": [report.to_data() for report in run.reports], "problems": run.problems}
            store(_sidecar_of(compiled), plan.identity, packed)
        return run, "run"

    def _recall(self, gm: GraphModule, compiled: Any, ours: CounterpointPass) -> tuple[PassRun, str]:
        """The report of a graph that came from the cache: the stored one, else what the passes do to a copy."""
        plan = self.plan
        stored = load(_sidecar_of(compiled), plan.identity) if plan.identity is not None else None
        if stored is not None:
            reports = [PipelineReport.from_data(packed) for packed in stored["reports"]]
            return PassRun(ours.run.name, reports, list(stored["problems"])), "stored"
        run = PassRun(ours.run.name)
        for module in graph_modules(gm):
            copied = GraphModule(module, copy.deepcopy(module.graph))
            run_guarded(copied.graph, plan, ours.groups, run, ours.capabilities)
        return run, "recomputed"


def _wrap_calls(compiled: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put something around every call of a compiled graph."""
    plain = getattr(compiled, "current_callable", None)
    if plain is not None:
        compiled.current_callable = wrap(plain)


def _ask_first(compiled: Any, asking: Callable[[Callable[..., Any]], Callable[..., Any] | None]) -> None:
    """Let the first call of a compiled graph ask the other ranks; the later ones cost nothing more than without."""
    plain = getattr(compiled, "current_callable", None)
    first = asking(plain) if plain is not None else None
    if first is None:
        return

    def call(inputs: Any) -> Any:
        result = first(inputs)
        compiled.current_callable = plain
        return result

    compiled.current_callable = call


def _cache_state(compiled: Any, hit: bool) -> str:
    if getattr(compiled, "_fx_graph_cache_key", None) is None:
        return "bypass" if inductor_config.fx_graph_cache else "off"
    return "hit" if hit else "miss"


def _sidecar_of(compiled: Any) -> Path:
    return sidecar_path(compiled._fx_graph_cache_key, compiled.source_code)
