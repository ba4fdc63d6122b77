"""What both wrappers share: a module whose parameters, read while it runs, come through a function of the wrapper.

A wrapped module keeps its parameters where they were, under the same names, so `named_parameters`, `state_dict` and
optimizers see nothing new. What changes is its class: a subclass of its own class with one property for each managed
parameter. Outside of a forward the property returns the registered parameter. During a forward, under `torch.compile`,
and during backward (where activation checkpointing runs forward code again) it returns what the wrapper makes of it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from counterpoint import _torch
from counterpoint.capture.mixed_precision import cast_floats, cast_inputs
from counterpoint.errors import CaptureError, OptionError

ATTRIBUTE = "_counterpoint"


class Unit(ABC):
    """The modules of one call of a wrapper. They share a policy, and all are readable while one of them runs."""

    def __init__(self, policy: MixedPrecisionPolicy) -> None:
        self.policy = policy
        self.in_forward = False

    @abstractmethod
    def read(self, parameter: nn.Parameter, recipe: Any) -> Tensor:
        """The tensor that a running module sees in place of a registered parameter."""

    def before_forward(self) -> None:  # noqa: B027  an optional step, not a missing one
        """What happens when a module that was handed to the wrapper is called, before its forward."""

    @property
    def is_running(self) -> bool:
        """Whether parameters are read for computing with them, as opposed to looking at them or initialising them."""
        return torch.compiler.is_compiling() or self.in_forward or _torch.in_backward()


@dataclass(frozen=True)
class Membership:
    """What a wrapped module knows: its unit, whether it was itself handed to the wrapper, how to read parameters."""

    unit: Unit
    is_root: bool
    recipes: dict[str, Any]


class WrappedModule(nn.Module):
    """Base of the classes that wrapped modules get; its children carry the methods of each wrapper."""

    prefix: ClassVar[str] = ""
    plain_class: ClassVar[type[nn.Module]] = nn.Module

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A module of the plain class: containers make new ones of their own class, when they are sliced for one."""
        return cls.plain_class(*args, **kwargs)

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


def wrap_module(module: nn.Module, kind: Any, membership: Membership) -> None:
    """Give the module its membership and a class of a kind of `WrappedModule`. Only this function changes a class."""
    module.__dict__[ATTRIBUTE] = membership
    plain: Any = type(module)
    module.__class__ = _wrapped_class(plain, kind, tuple(sorted(membership.recipes)))


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


def managed_parameters(module: nn.Module, ignored: Iterable[nn.Parameter] | None) -> dict[str, nn.Parameter]:
    """The module's own parameters by name, tied ones under each of their names, without the ignored ones."""
    skip = {id(parameter) for parameter in ignored or ()}
    own = module.named_parameters(recurse=False, remove_duplicate=False)
    return {name: parameter for name, parameter in own if id(parameter) not in skip}


def check_options(
    options: Mapping[str, Any], accepted: Mapping[str, tuple[tuple[Any, ...], str]], wrapper: Callable[..., Any]
) -> None:
    """Refuse options of torch's wrapper that mean nothing here, unless at a value that asks for what happens anyway.

    `accepted` maps a name to its harmless values and to what to do instead of passing another.
    """
    for name, value in options.items():
        if name not in accepted:
            known = [*inspect.signature(wrapper).parameters, *accepted]
            near = difflib.get_close_matches(name, known)
            raise OptionError(
                f"{wrapper.__name__} has no option {name!r}",
                next_step=f"did you mean {' or '.join(near)}?"
                if near
                else f"see help(counterpoint.{wrapper.__name__})",
            )
        harmless, next_step = accepted[name]
        if value not in harmless:
            raise OptionError(f"{name}={value!r} is not supported", where=wrapper.__name__, next_step=next_step)


def check_wrappable(module: nn.Module, wrapper: str) -> None:
    """Refuse what cannot be a unit: wrapped already, by us or by torch, or a container without a forward."""
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


@functools.cache
def _wrapped_class(base: type[Any], kind: type[Any], names: tuple[str, ...]) -> type[Any]:
    # One class for all modules of a kind: the compiler then takes the layers of a model for repetitions of one layer.
    members: dict[str, Any] = {name: _reader(name) for name in names}
    members["forward"] = _forward_through(base)
    members["__module__"] = base.__module__
    members["plain_class"] = base
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
    # After a graph break inside a compiled forward, what runs uncompiled must still find the unit running, or it would
    # compute with the registered parameters and their gradients would stay unreduced. So the mark is set while tracing
    # as well, where that can be traced; elsewhere a break inside `try` leaves all of `try` uncompiled.
    traced = _torch.traces_restored_attributes()

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        membership: Membership = self._counterpoint
        unit, before = membership.unit, membership.unit.in_forward
        if membership.is_root:
            unit.before_forward()
            args, kwargs = cast_inputs(unit.policy, args, kwargs)
        try:
            # Asked in here: at a break the compiler cuts where `try` begins, and what follows runs as it is.
            if traced or not torch.compiler.is_compiling():
                unit.in_forward = True
            output = base.forward(self, *args, **kwargs)
        finally:
            if traced or not torch.compiler.is_compiling():
                unit.in_forward = before
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
