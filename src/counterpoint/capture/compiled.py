"""The graphs that `torch.compile` makes of a model, forward and backward, without running or generating any code.

The model is called once with stand-ins for everything it holds and takes, so that its graphs are found in the order in
which training would meet them. In place of each graph runs a function that answers tensors of the right shapes.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn.parallel import DistributedDataParallel

from counterpoint import _torch
from counterpoint.capture.graph import CapturedGraph, Role
from counterpoint.capture.inputs import StandIns, held_tensors, modules_of, swapped
from counterpoint.capture.lines import user_line
from counterpoint.capture.world import World, current_world, groups_of
from counterpoint.errors import CaptureError

CompiledStage = Literal["aot", "post_grad"]
_BACKENDS = {"aot": _torch.aot_backend, "post_grad": _torch.post_grad_backend}


def capture_compiled(
    model_or_fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    stage: CompiledStage = "aot",
    dynamic: bool | None = None,
    train: bool = True,
    fullgraph: bool = False,
    device: str = "cpu",
) -> list[CapturedGraph]:
    """The graphs in the order in which they are compiled: with graph breaks, a forward and a backward for each part.

    loss: makes a scalar of the output; without it, the floating-point outputs are summed. It is not part of the graphs.
    stage: "aot" after autograd, "post_grad" after inductor's rewrites, where its last custom pass stands.
    dynamic: as in torch.compile; None makes those sizes symbolic that `mark_dynamic` named.
    train: False runs without gradients, for inference graphs.
    fullgraph: a graph break is an error.
    device: where tensors of the meta device are pretended to lie.
    Compiled code of this process is dropped before and after.
    """
    world = current_world("capture_compiled")
    stand_ins = StandIns(device)
    held = held_tensors(modules_of(model_or_fn))
    _check_reducers(model_or_fn, train)
    collected = _Collected(world, stage)
    with ExitStack() as stack:
        stack.enter_context(_torch.quiet_compiler())
        stack.enter_context(stand_ins.mode)
        stack.enter_context(swapped([(tensor, stand_ins.whole(tensor)) for tensor in held]))
        stack.enter_context(_named_failures(model_or_fn))
        call = torch.compile(model_or_fn, backend=collected.backend("forward"), dynamic=dynamic, fullgraph=fullgraph)
        inputs = stand_ins.batch((args, dict(kwargs or {})))
        _train_once(call, inputs, loss, collected, train, _reduces_in_python(model_or_fn))
    # A backward alone comes from compiled autograd: it does not show that the forward was compiled.
    if all(graph.role == "backward" for graph in collected.graphs):
        raise _nothing_captured(model_or_fn)
    return collected.graphs


def _train_once(
    call: Callable[..., Any],
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    loss: Callable[[Any], Tensor] | None,
    collected: _Collected,
    train: bool,
    whole_backward: bool,
) -> None:
    args, kwargs = inputs
    if not train:
        with torch.no_grad():
            call(*args, **kwargs)
        return
    with ExitStack() as stack:
        if whole_backward:
            compiler = torch.compile(backend=collected.backend("backward"), dynamic=False)
            stack.enter_context(_torch.compiled_backward(compiler))
        output = call(*args, **kwargs)
        scalar = loss(output) if loss is not None else _sum_of(output)
        if isinstance(scalar, Tensor) and scalar.requires_grad:
            scalar.backward()


def _sum_of(output: Any) -> Tensor | None:
    leaves = [leaf for leaf in _torch.tree_flatten(output)[0] if isinstance(leaf, Tensor) and leaf.requires_grad]
    total: Tensor | None = None
    for leaf in leaves:
        total = leaf.sum() if total is None else total + leaf.sum()
    return total


class _Collected:
    """The graphs found so far. A forward and its backward have the same number, counted in the order of forwards."""

    def __init__(self, world: World, stage: CompiledStage) -> None:
        self.world = world
        self.stage: CompiledStage = stage
        self.graphs: list[CapturedGraph] = []

    def backend(self, role: Role) -> Callable[..., Any]:
        """A backend whose graphs without a backward of their own have this role."""
        numbers = itertools.count()

        def compile_part(gm: GraphModule, examples: Any) -> Any:
            number = next(numbers)

            def take(part: GraphModule, is_backward: bool) -> Callable[..., Any]:
                return self._take(part, "backward" if is_backward else role, number)

            def take_inference(part: GraphModule, _: bool) -> Callable[..., Any]:
                # Compiled autograd hands a whole backward over as a forward that nobody differentiates.
                return self._take(part, role if role == "backward" else "inference", number)

            return _BACKENDS[self.stage](take, take_inference)(gm, examples)

        return compile_part

    def _take(self, gm: GraphModule, role: Role, number: int) -> Callable[..., Any]:
        kept = _torch.copy_graph(gm)
        self.graphs.append(
            CapturedGraph(
                kept,
                name=f"{role}_{number}",
                role=role,
                world_size=self.world.size,
                rank=self.world.rank,
                groups=groups_of(kept),
                stage=self.stage,
            )
        )
        return _torch.functorch_boxed(_Pretend(gm))


class _Pretend:
    """Stands where a compiled graph would: takes its inputs, answers what looks like its outputs."""

    def __init__(self, gm: GraphModule) -> None:
        self.placeholders = gm.graph.find_nodes(op="placeholder")
        self.results: Any = gm.graph.output_node().args[0]

    def __call__(self, inputs: list[Any]) -> list[Any]:
        given = dict(zip(self.placeholders, inputs, strict=True))
        return [self._result(result, given) for result in self.results]

    def _result(self, result: Any, given: Mapping[Node, Any]) -> Any:
        if not isinstance(result, Node):
            return result
        if result in given:
            return given[result]
        value = result.meta["val"]
        if isinstance(value, Tensor):
            shape, stride = [_concrete(s) for s in value.shape], [_concrete(s) for s in value.stride()]
            return torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
        return _concrete(value)


def _concrete(value: Any) -> Any:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.hint if value.node.has_hint() else operator.index(1)
    return value


@contextmanager
def _named_failures(target: Callable[..., Any]) -> Iterator[None]:
    try:
        yield
    except _torch.graph_break_error() as error:
        raise CaptureError(
            f"{_name(target)} does not become one graph: {str(error).strip().splitlines()[0]}",
            where=user_line(error),
            next_step="remove the graph break, or capture with fullgraph=False and get several graphs",
        ) from error
    except _torch.data_dependent_errors() as error:
        raise CaptureError(
            f"{_name(target)} asks for the value of a tensor between two graphs, and a capture has no values",
            where=user_line(error),
            next_step="compute it with tensors (torch.where), or capture the parts before and after it by themselves",
        ) from error


def _check_reducers(target: Callable[..., Any], train: bool) -> None:
    for module in _reducers(target):
        if train and not _torch.reducer_facts(module).in_python:
            raise CaptureError(
                "this DistributedDataParallel module reduces its gradients in C++, where a compiler cannot look",
                where="capture_compiled",
                next_step='set torch._dynamo.config.optimize_ddp = "python_reducer" before constructing it, '
                "or use counterpoint.replicate",
            )


def _reducers(target: Callable[..., Any]) -> list[DistributedDataParallel]:
    return [m for root in modules_of(target).values() for m in root.modules() if isinstance(m, DistributedDataParallel)]


def _reduces_in_python(target: Callable[..., Any]) -> bool:
    return bool(_reducers(target))


def _nothing_captured(target: Callable[..., Any]) -> CaptureError:
    inner = target.module if isinstance(target, DistributedDataParallel) else target
    if isinstance(inner, (nn.Sequential, nn.ModuleList)):
        return CaptureError(
            f"torch.compile skipped {_name(target)}: it looks past a bare {type(inner).__name__}",
            where="capture_compiled",
            next_step="hold it in a module class of your own, whose forward calls it",
        )
    return CaptureError(
        f"torch.compile found nothing to compile in {_name(target)}",
        where="capture_compiled",
        next_step="check that its forward computes with tensors and is not excluded by torch.compiler.disable",
    )


def _name(target: Callable[..., Any]) -> str:
    return type(target).__name__ if isinstance(target, nn.Module) else getattr(target, "__name__", "the function")
