"""The tensors that a model holds, and stand-ins for them: a capture never touches, and never needs, their values.

A stand-in is a fake tensor of the same shape, dtype and layout, on the device where the original lies. A model on the
meta device, or one built under a fake mode, is captured as if its weights had been allocated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from counterpoint import _torch
from counterpoint._torch import FakeTensorMode
from counterpoint.errors import CaptureError

Place = tuple[MutableMapping[str, Any], str]


class TensorRole(Enum):
    """What a tensor is to a model or to a step."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"
    """A tensor kept as a plain attribute: used, but neither trained nor saved."""
    STATE = "state"
    """What an optimizer remembers of a parameter."""
    BATCH = "batch"
    LOSS = "loss"
    GRADIENT = "gradient"


@dataclass(frozen=True)
class Held:
    """One tensor that a model holds, under every name that leads to it."""

    role: TensorRole
    name: str
    """The first of its names, in order of registration."""
    tensor: Tensor
    places: tuple[Place, ...]


def held_tensors(modules: Mapping[str, nn.Module]) -> tuple[Held, ...]:
    """Every tensor of some modules, once each: parameters, then buffers, then tensors kept as plain attributes."""
    found: dict[int, tuple[TensorRole, str, Tensor, list[Place]]] = {}
    for role in (TensorRole.PARAMETER, TensorRole.BUFFER, TensorRole.CONSTANT):
        for name, tensor, place in _walk(modules, role):
            found.setdefault(id(tensor), (role, name, tensor, []))[3].append(place)
    return tuple(Held(role, name, tensor, tuple(places)) for role, name, tensor, places in found.values())


def _walk(modules: Mapping[str, nn.Module], role: TensorRole) -> Iterator[tuple[str, Tensor, Place]]:
    for prefix, root in modules.items():
        for path, module in root.named_modules(prefix=prefix):
            holder: MutableMapping[str, Any] = {
                TensorRole.PARAMETER: module._parameters,
                TensorRole.BUFFER: module._buffers,
            }.get(role, module.__dict__)
            for name, value in list(holder.items()):
                if isinstance(value, Tensor):
                    yield f"{path}.{name}" if path else name, value, (holder, name)


@contextmanager
def swapped(replacements: Iterable[tuple[Held, Tensor]]) -> Iterator[None]:
    """Put other tensors where a model holds its own; the model has its own again afterwards, whatever happens."""
    pairs = [(holder, key, holder[key], new) for held, new in replacements for holder, key in held.places]
    try:
        for holder, key, _, new in pairs:
            holder[key] = new
        yield
    finally:
        for holder, key, old, _ in pairs:
            holder[key] = old


def modules_of(target: Callable[..., Any]) -> dict[str, nn.Module]:
    """The modules behind what is captured: the module itself, or those that a function closes over or looks up."""
    if isinstance(target, nn.Module):
        return {"": target}
    function = inspect.unwrap(target)
    if inspect.ismethod(function):
        owner = {"self": function.__self__}
        function = function.__func__
    else:
        owner = {}
    if not inspect.isfunction(function):
        return {}
    seen = inspect.getclosurevars(function)
    names = {**owner, **seen.globals, **seen.nonlocals}
    return {name: value for name, value in names.items() if isinstance(value, nn.Module)}


class StandIns:
    """Makes stand-ins of one fake mode."""

    def __init__(self, device: str = "cpu") -> None:
        self.mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
        self.device = device
        """Where tensors of the meta device are pretended to lie, unless a mesh says otherwise."""
        self._symbols = 0

    def local(self, tensor: Tensor, dynamic: Iterable[int] = ()) -> Tensor:
        """A plain fake tensor in the shape of `tensor`, or of the part of a DTensor on this rank."""
        part = local_part(tensor)
        device = self._device_of(tensor, part)
        marked = frozenset(dynamic)
        if not marked:
            with self.mode:
                return torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device=device)
        shape = [self._symbol(size) if dim in marked and size > 1 else size for dim, size in enumerate(part.shape)]
        with self.mode:
            return torch.empty(shape, dtype=part.dtype, device=device)

    def whole(self, held: Held) -> Tensor:
        """A stand-in of the same kind: a parameter, a DTensor, or plain."""
        tensor = around(self.local(held.tensor), held.tensor)
        if held.role is TensorRole.PARAMETER:
            parameter = nn.Parameter(tensor, requires_grad=held.tensor.requires_grad)
            _torch.copy_tensor_hooks(held.tensor, parameter)
            return parameter
        return tensor

    def batch(self, tree: Any) -> Any:
        """Stand-ins for all tensors in a nest of containers; whatever else is there stays."""
        return _torch.tree_map(lambda leaf: self._leaf(leaf) if isinstance(leaf, Tensor) else leaf, tree)

    def _leaf(self, tensor: Tensor) -> Tensor:
        leaf = around(self.local(tensor), tensor).requires_grad_(tensor.requires_grad)
        _torch.copy_dynamic_marks(tensor, leaf)
        return leaf

    def _symbol(self, size: int) -> torch.SymInt:
        self._symbols += 1
        return _torch.new_symbol(self.mode.shape_env, f"batch_size_{self._symbols}", size)

    def _device_of(self, tensor: Tensor, part: Tensor) -> torch.device:
        if part.device.type != "meta":
            return part.device
        return torch.device(tensor.device_mesh.device_type if isinstance(tensor, DTensor) else self.device)


def local_part(tensor: Tensor) -> Tensor:
    """The tensor itself, or what a DTensor holds on this rank. Other wrappers around tensors are refused."""
    if isinstance(tensor, DTensor):
        return _torch.local_part(tensor)
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer, _torch.FakeTensor) and _torch.is_wrapper(tensor):
        raise CaptureError(
            f"a tensor of type {type(tensor).__name__} wraps others in a way that capture does not know",
            next_step="convert it to plain tensors or DTensors before capturing",
        )
    return tensor.detach()


def around(local: Tensor, like: Tensor) -> Tensor:
    """`local` as it stands, or as the DTensor that lies on its mesh as `like` does."""
    return _torch.dtensor_around(local, like) if isinstance(like, DTensor) else local
