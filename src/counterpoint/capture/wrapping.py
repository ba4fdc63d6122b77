"""What both wrappers share: a module whose parameters, read while it runs, come through a function of the wrapper.

A wrapped module keeps its parameters where they were, under the same names, so `named_parameters`, `state_dict` and
optimizers see nothing new. What changes is its class: a subclass of its own class with one property for each managed
parameter. Outside of a forward the property returns the registered parameter. During a forward, under `torch.compile`, and
during backward (where activation checkpointing runs forward code again) it returns what the wrapper makes of it.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from counterpoint import _torch
from counterpoint.capture.mixed_precision import MixedPrecisionPolicy, cast_floats, cast_inputs
from counterpoint.errors import CaptureError

ATTRIBUTE = "_counterpoint"
M = TypeVar("M", bound=nn.Module)


class Unit(ABC):
    """The modules of one call of a wrapper. They share a policy, and all are readable while one of them runs."""

    def __init__(self, policy: MixedPrecisionPolicy) -> None:
        self.policy = policy
        self._running = 0

    @abstractmethod
    def read(self, parameter: nn.Parameter, recipe: Any) -> Tensor:
        """The tensor that a running module sees in place of a registered parameter."""

    def before_forward(self) -> None:  # noqa: B027  an optional step, not a missing one
        """What happens when a module that was handed to the wrapper is called, before its forward."""

    @property
    def is_running(self) -> bool:
        """Whether parameters are read for computing with them, as opposed to looking at them or initialising them."""
        return torch.compiler.is_compiling() or self._running > 0 or _torch.in_backward()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Marks a forward in progress. Under the compiler there is nothing to mark: it traces forwards only."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


@dataclass(frozen=True)
class Membership:
    """What one wrapped module knows: its unit, whether it was handed to the wrapper itself, and how to read each parameter."""

    unit: Unit
    is_root: bool
    recipes: dict[str, Any]


class WrappedModule:
    """Base of the classes that wrapped modules get; its children carry the methods of each wrapper."""

    prefix: ClassVar[str] = ""

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        """Refused, as torch's wrappers do: the copy would share process groups and ties with the original."""
        raise _not_copied(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refused: the class of a wrapped module exists in this process only."""
        raise _not_copied(self)


def membership_of(module: nn.Module) -> Membership | None:
    """What a wrapper left on the module, or None for a module that no wrapper has touched."""
    found = module.__dict__.get(ATTRIBUTE)
    return found if isinstance(found, Membership) else None


def wrap_module(module: nn.Module, kind: type[WrappedModule], membership: Membership) -> None:
    """Give the module its new class and its membership. This is the only place that changes a class."""
    module.__dict__[ATTRIBUTE] = membership
    module.__class__ = _wrapped_class(type(module), kind, tuple(sorted(membership.recipes)))


def modules_to_wrap(roots: Sequence[nn.Module], ignored: Iterable[nn.Module] = ()) -> list[nn.Module]:
    """The modules under `roots` in order of registration, without ignored subtrees and subtrees already wrapped."""
    stop, seen, found = set(ignored), set[nn.Module](), list[nn.Module]()

    def visit(module: nn.Module) -> None:
        if module in seen or module in stop or membership_of(module) is not None:
            return
        seen.add(module)
        found.append(module)
        for child in module.children():
            visit(child)

    for root in roots:
        visit(root)
    return found


def check_wrappable(module: nn.Module, wrapper: str) -> None:
    """Refuse what would be wrapped in name only: modules that do not run a Python forward, or bypass their attributes."""
    name = type(module).__name__
    if membership_of(module) is not None:
        raise CaptureError(
            f"{name} is already wrapped",
            where=wrapper,
            next_step="wrap each module once, inner modules before outer ones",
        )
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        raise CaptureError(
            f"{name} has no forward of its own to wrap",
            where=wrapper,
            next_step=f"wrap what it holds: for layer in layers: {wrapper}(layer)",
        )
    if isinstance(module, nn.parallel.DistributedDataParallel) or _is_torch_sharded(module):
        raise CaptureError(
            f"{name} is already distributed by torch",
            where=wrapper,
            next_step="use one or the other on the same module",
        )


def check_readable(module: nn.Module, wrapper: str) -> None:
    """Refuse modules whose forward reads parameters past their attributes, which would skip the collectives unseen."""
    name = type(module).__name__
    if isinstance(module, (nn.RNNBase, torch.jit.ScriptModule)):
        raise CaptureError(
            f"{name} reads its parameters past its attributes, so no collective would be seen",
            where=wrapper,
            next_step="exclude it (ignored_modules or ignored_params), or write the layer with nn.Linear",
        )
    if "forward" in module.__dict__:
        raise CaptureError(
            f"the forward of this {name} was replaced on the instance",
            where=wrapper,
            next_step="define forward on the class, or replace it after wrapping",
        )


@functools.lru_cache(maxsize=None)
def _wrapped_class(base: type[nn.Module], kind: type[WrappedModule], names: tuple[str, ...]) -> type[nn.Module]:
    # One class for all modules of a kind: the compiler then takes the layers of a model for repetitions of one layer.
    members: dict[str, Any] = {name: _reader(name) for name in names}
    members["forward"] = _forward_through(base)
    members["__module__"] = base.__module__
    return type(f"{kind.prefix}{base.__name__}", (kind, base), members)


def _reader(name: str) -> property:
    def read(module: Any) -> Tensor | None:
        if name not in module._parameters:
            raise AttributeError(name)
        parameter: nn.Parameter | None = module._parameters[name]
        membership: Membership = module._counterpoint
        if parameter is None or not membership.unit.is_running:
            return parameter
        return membership.unit.read(parameter, membership.recipes[name])

    return property(read)


def _forward_through(base: type[nn.Module]) -> Any:
    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        membership: Membership = self._counterpoint
        unit = membership.unit
        if membership.is_root:
            unit.before_forward()
            args, kwargs = cast_inputs(unit.policy, args, kwargs)
        if torch.compiler.is_compiling():
            output = base.forward(self, *args, **kwargs)
        else:
            with unit.running():
                output = base.forward(self, *args, **kwargs)
        return cast_floats(output, unit.policy.output_dtype) if membership.is_root else output

    return forward


def _is_torch_sharded(module: nn.Module) -> bool:
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    return isinstance(module, (FSDPModule, FullyShardedDataParallel))


def _not_copied(module: object) -> CaptureError:
    return CaptureError(
        f"{type(module).__name__} cannot be copied or pickled",
        next_step="copy or save its state_dict(), or copy the module before wrapping it",
    )
