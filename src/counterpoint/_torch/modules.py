"""Modules, tensors and trees of them: what the wrappers and a capture need to know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

from counterpoint._torch.versions import torch_version


def in_backward() -> bool:
    """Whether this thread is inside a backward pass, where activation checkpointing runs forward code again (2.11)."""
    return torch._C._current_graph_task_id() != -1


def traces_restored_attributes() -> bool:
    """Whether the compiler traces code that sets an attribute and sets it back in a checkpointed region (2.13)."""
    return torch_version() >= (2, 13)


def recomputed(function: Callable[..., Any], *args: Any) -> Any:
    """A call of `function` that the backward of a compiled graph repeats, instead of keeping what it returned.

    Before torch 2.12 a checkpointed region does not mark what an autograd function inside it does, but one that chooses
    by operator marks every operator.
    """
    if torch_version() >= (2, 12):
        return checkpoint(function, *args, use_reentrant=False)
    return checkpoint(function, *args, use_reentrant=False, context_fn=_repeat_everything)


def _repeat_everything() -> Any:
    return create_selective_checkpoint_contexts(_prefer_recompute)


def _prefer_recompute(*_: Any, **__: Any) -> CheckpointPolicy:
    return CheckpointPolicy.PREFER_RECOMPUTE


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """`function` on every leaf of a nest of containers, in the form that the compiler traces (2.11 on)."""
    return pytree.tree_map(function, tree)


def strided_shard(dim: int, split_factor: int) -> Placement:
    """A dimension cut by an outer mesh dimension after `split_factor` inner ranks have cut it already (2.11 on)."""
    from torch.distributed.tensor.placement_types import _StridedShard

    return _StridedShard(dim, split_factor=split_factor)


def joined_mesh(outer: DeviceMesh, inner: DeviceMesh) -> DeviceMesh:
    """The mesh with the dimensions of both; they must be slices of one mesh (2.11 on)."""
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh._concatenate([outer, inner])


def tree_flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a nest of containers and the structure around them."""
    leaves, structure = pytree.tree_flatten(tree)
    return leaves, structure


def tree_unflatten(leaves: Iterable[Any], structure: Any) -> Any:
    """The nest of containers again."""
    return pytree.tree_unflatten(leaves, structure)


def tree_paths(tree: Any) -> list[str]:
    """Where each leaf of a nest of containers lies, such as `0.tokens`, in the order of `tree_flatten`."""
    return [
        ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
        for path, _ in pytree.tree_flatten_with_path(tree)[0]
    ]


def dtensor_around(local: torch.Tensor, like: Any) -> torch.Tensor:
    """A leaf DTensor that lies on its mesh as `like` does; public `from_local` would add a view to the graph."""
    from torch.distributed.tensor import DTensor

    return DTensor(local, like._spec, requires_grad=False)


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a Python object around other tensors."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return bool(is_traceable_wrapper_subclass(tensor))


def local_part(tensor: Any) -> torch.Tensor:
    """The tensor that a DTensor holds on this rank."""
    local: torch.Tensor = tensor._local_tensor
    return local


def has_post_accumulate_hooks(parameter: torch.Tensor) -> bool:
    """Whether something runs after the parameter's gradient was accumulated, such as an optimizer in the backward."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def copy_tensor_hooks(source: torch.Tensor, target: torch.Tensor) -> None:
    """Register the hooks of one leaf on another that stands in for it."""
    for hook in (getattr(source, "_backward_hooks", None) or {}).values():
        target.register_hook(hook)
    for hook in (getattr(source, "_post_accumulate_grad_hooks", None) or {}).values():
        target.register_post_accumulate_grad_hook(hook)


class ReducerFacts(NamedTuple):
    """What a DistributedDataParallel module would do in its reducer."""

    group: Any
    parameters: tuple[torch.Tensor, ...]
    buffers: tuple[torch.Tensor, ...]
    """Copied from the first rank before each forward."""
    synchronises: bool
    """False inside `no_sync`."""
    hooked: bool
    """A communication hook replaces the all-reduce."""
    in_python: bool
    """The reducer is written in Python, so a compiler can see it."""


def reducer_facts(module: torch.nn.parallel.DistributedDataParallel) -> ReducerFacts:
    """How a DDP module reduces its gradients."""
    return ReducerFacts(
        group=module.process_group,
        parameters=tuple(p for p in module._module_parameters if p.requires_grad),
        buffers=tuple(module.modules_buffers) if module.will_sync_module_buffers() else (),
        synchronises=bool(module.require_backward_grad_sync),
        hooked=bool(module._comm_hooks),
        in_python=bool(module._use_python_reducer),
    )


@contextmanager
def without_reducer(modules: Iterable[torch.nn.parallel.DistributedDataParallel]) -> Iterator[None]:
    """Let DDP modules call what they hold and nothing else: a C++ reducer cannot be traced."""
    before = [(module, module._use_python_reducer) for module in modules]
    for module, _ in before:
        module._use_python_reducer = True
    try:
        yield
    finally:
        for module, value in before:
            module._use_python_reducer = value


def copy_dynamic_marks(source: torch.Tensor, target: torch.Tensor) -> None:
    """Give one tensor the marks that `mark_dynamic` and its siblings left on another."""
    for name, value in source.__dict__.items():
        if name.startswith("_dynamo_"):
            setattr(target, name, value)


def dynamic_dims(tensor: torch.Tensor) -> frozenset[int]:
    """The dimensions that `mark_dynamic` or `maybe_mark_dynamic` named."""
    marks = (getattr(tensor, f"_dynamo_{kind}_indices", ()) for kind in ("dynamic", "weak_dynamic"))
    return frozenset(dim for mark in marks for dim in mark)
