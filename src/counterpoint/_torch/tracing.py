"""Tracing: fake groups, one step as a graph, the graphs that torch.compile makes."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx import traceback as fx_traceback

from counterpoint._torch.graphs import copy_graph
from counterpoint._torch.versions import torch_version


def fake_store() -> Any:
    """The store of a process group that only pretends to communicate; loading it registers that backend."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def forget_meshes() -> None:
    """Drop what DTensor remembers of past meshes: it compares meshes by layout, so a new world would get old groups."""
    from torch.distributed.tensor import debug

    for name in ("_clear_python_sharding_prop_cache", "_clear_fast_path_sharding_prop_cache"):
        # Not every version has both caches.
        getattr(debug, name, lambda: None)()


def functional_trace(function: Callable[..., Any], args: list[Any], *, symbolic: bool) -> GraphModule:
    """Trace a function of fake tensors into a graph without in-place operators.

    `make_fx` with functionalization below autograd, as AOT autograd stacks them. The public `torch.func.functionalize`
    works above the dispatch of DTensor and cannot look inside one.
    """
    from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    functional = dispatch_functionalize(function, FunctionalTensorMode())
    tracer = make_fx(functional, tracing_mode="symbolic" if symbolic else "fake", record_stack_traces=True)
    with fx_traceback.preserve_node_meta():
        return tracer(*args)


def note_module(path: Sequence[tuple[str, str]]) -> None:
    """Let nodes that are traced from now on carry these modules, outermost first: path and class of each."""
    if path:
        fx_traceback.current_meta["nn_module_stack"] = {name: (name, kind) for name, kind in path}
    else:
        fx_traceback.current_meta.pop("nn_module_stack", None)


@contextmanager
def remember_forward_lines(loss: torch.Tensor) -> Iterator[None]:
    """Let the nodes of the backward that is traced inside carry the sequence number of the forward node they belong to,
    and the mark `autograd_backward`.
    """
    from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    if loss.grad_fn is not None:
        setup_stacktrace_preservation_hooks([loss.grad_fn])
    mode = None if torch_version() >= (2, 12) else get_proxy_mode()
    known = len(mode.tracer.graph.nodes) if mode is not None else 0
    yield
    if mode is not None:
        # torch sets the mark itself from 2.12 on.
        for node in islice(mode.tracer.graph.nodes, known, None):
            node.meta["autograd_backward"] = True


@contextmanager
def as_if_compiling() -> Iterator[None]:
    """Let library code take the branches meant for graphs: optimizers then keep their step count a tensor."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


GraphTaker = Callable[[GraphModule, bool], Callable[..., Any]]
"""Called with a graph and whether it is a backward; answers what runs in its place."""


def aot_backend(take: GraphTaker, take_inference: GraphTaker) -> Callable[..., Any]:
    """A `torch.compile` backend that hands out AOT autograd's graphs, partitioned and decomposed as for inductor."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    return aot_autograd(
        fw_compiler=lambda gm, _: take(gm, False),
        bw_compiler=lambda gm, _: take(gm, True),
        inference_compiler=lambda gm, _: take_inference(gm, False),
        decompositions=select_decomp_table,
        partition_fn=functools.partial(min_cut_rematerialization_partition, compiler="inductor"),
        keep_inference_input_mutations=True,
    )


def post_grad_backend(take: GraphTaker, take_inference: GraphTaker) -> Callable[..., Any]:
    """A `torch.compile` backend that hands out graphs as inductor's last custom pass sees them; nothing is lowered."""
    from torch._inductor import config
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.pattern_matcher import stable_topological_sort
    from torch._inductor.virtualized import V

    inductor: Any = importlib.import_module("torch._inductor.compile_fx")

    def inner(gm: GraphModule, examples: Any, **facts: Any) -> Callable[..., Any]:
        seen: list[GraphModule] = []

        def look(graph: Graph) -> None:
            stable_topological_sort(graph)
            seen.append(copy_graph(gm))

        inductor.view_to_reshape(gm)
        mode = inductor.fake_tensor_prop(gm, examples)
        inference = bool(facts.get("is_inference"))
        with V.set_fake_mode(mode), config.patch(post_grad_custom_post_pass=look):
            post_grad_passes(gm, inference)
        run = (take_inference if inference else take)(seen[0], bool(facts.get("is_backward")))
        return functorch_boxed(run)

    return lambda gm, examples: inductor.compile_fx(gm, examples, inner_compile=inner)


def functorch_boxed(run: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that takes its arguments as one list, which it may empty."""
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """torch.compile without caches, without rewrites of communication, and blind to what was compiled before."""
    import torch._dynamo
    import torch._functorch.config

    inductor: Any = importlib.import_module("torch._inductor.config")
    off = {
        "_fuse_ddp_communication": False,
        "_micro_pipeline_tp": False,
        "reorder_for_compute_comm_overlap": False,
        "bucket_all_gathers_fx": "none",
        "bucket_reduce_scatters_fx": "none",
        "bucket_all_reduces_fx": "none",
        "aten_distributed_optimizations.enable_overlap_scheduling": False,
        # 2.14 on, and switched on there.
        "aten_distributed_optimizations.enable_simple_overlap": False,
        "post_grad_custom_pre_pass": None,
        "post_grad_custom_post_pass": None,
    }
    known = {name: value for name, value in off.items() if name in inductor._config}
    torch.compiler.reset()
    try:
        with (
            inductor.patch(known),
            torch._functorch.config.patch(enable_autograd_cache=False),
            torch._dynamo.config.patch(automatic_dynamic_shapes=False),
        ):
            yield
    finally:
        torch.compiler.reset()


def compiled_backward(compiler: Callable[..., Any]) -> AbstractContextManager[None]:
    """Hand whole backward passes to a compiler: compiled autograd with one of our own choosing."""
    from torch._dynamo import compiled_autograd

    return compiled_autograd._enable(compiler)


def data_dependent_errors() -> tuple[type[BaseException], ...]:
    """What tracing raises when Python asks for the value of a tensor that has none."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode


def graph_break_error() -> type[BaseException]:
    """What `fullgraph=True` raises."""
    from torch._dynamo.exc import Unsupported

    return Unsupported
