"""Compiling without code generation: the graphs of AOT autograd run as our passes leave them, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import (
    default_partition,
    has_recomputable_ops,
    min_cut_rematerialization_partition,
)
from torch.fx import GraphModule
from torch.fx.graph import _BoxedCodeGen

from counterpoint.inductor.account import Account, in_compiled_autograd
from counterpoint.inductor.agreement import first_call
from counterpoint.inductor.capabilities import ASSEMBLIES
from counterpoint.inductor.groups import collectives, graph_modules, live_groups
from counterpoint.inductor.guard import PassRun, run_guarded
from counterpoint.inductor.plan import Plan
from counterpoint.inductor.standstill import watched


def compile_without_codegen(gm: GraphModule, example_inputs: Sequence[Any], plan: Plan) -> Callable[..., Any]:
    """Compile one graph of dynamo's where no compiler is needed, and none may exist.

    No decompositions, because torch's own kernels are faster than their parts when nothing fuses the parts again.
    """
    backward = in_compiled_autograd()
    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=partial(_run_passes, plan=plan, role="backward" if backward else "forward"),
        bw_compiler=partial(_run_passes, plan=plan, role="backward"),
        inference_compiler=partial(_run_passes, plan=plan, role="backward" if backward else "inference"),
        partition_fn=_partition,
        keep_inference_input_mutations=True,
    )(gm, example_inputs)
    return compiled


def _partition(joint: GraphModule, *args: Any, **kwargs: Any) -> tuple[GraphModule, GraphModule]:
    """Save activations as eager does, since recomputing pays only where kernels are fused; recompute what is marked.

    Torch's default partition keeps the outputs of marked regions, and a gathered parameter is such an output.
    """
    chosen = min_cut_rematerialization_partition if has_recomputable_ops(joint) else default_partition
    forward, backward = chosen(joint, *args, **kwargs)
    return forward, backward


def _run_passes(gm: GraphModule, example_inputs: Sequence[Any], *, plan: Plan, role: str) -> Callable[[list[Any]], Any]:
    starts = collectives(gm)
    account = Account.open(plan, role, len(starts))
    groups = live_groups(starts)
    found = ASSEMBLIES.table(plan, groups, starts)
    run = PassRun(role)
    for module in graph_modules(gm):
        run_guarded(module.graph, plan, groups, run, found)
    # The boxed form takes its inputs in a list and empties it, so that activations die when last used.
    gm.graph.set_codegen(_BoxedCodeGen())
    for module in graph_modules(gm):
        module.recompile()
    record = account.close(run, origin="run" if run.reports else "none", cache="off")
    forward = watched(gm.forward, record, run.launches, groups)
    asking = first_call(forward, plan, record.graph, run.launches, groups)

    def call(inputs: list[Any]) -> Any:
        nonlocal asking
        if asking is None:
            return forward(inputs)
        result, asking = asking(inputs), None
        return result

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
