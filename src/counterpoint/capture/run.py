"""Running a step graph on the rank it was captured for, with the tensors of a real model and optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from counterpoint import _torch
from counterpoint.capture.graph import CapturedGraph
from counterpoint.capture.inputs import TensorRole, around, held_tensors, local_part
from counterpoint.capture.optimizers import starts_from_zeros
from counterpoint.capture.signature import Slot, StepSignature, read_signature
from counterpoint.capture.world import current_world
from counterpoint.errors import CaptureError, GroupError
from counterpoint.ir.metadata import tensor_of
from counterpoint.runtime.pipelined import operators  # noqa: F401  a captured graph may hold them


@dataclass(frozen=True)
class StepResult:
    """What a step computed on this rank, by slot. Nothing has been written to the model yet."""

    values: Mapping[Slot, Tensor]

    @property
    def loss(self) -> Tensor:
        """The loss of this rank's batch."""
        return self.values[Slot(TensorRole.LOSS, "")]

    def of(self, role: TensorRole) -> dict[str, Tensor]:
        """All results of one role by name; of a DTensor, the part on this rank."""
        return {slot.name: value for slot, value in self.values.items() if slot.role is role}

    @torch.no_grad()
    def store(self, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        """Write new values into the model, gradients to its `.grad`, and new state into the optimizer."""
        held = {(h.role, h.name): h.tensor for h in held_tensors({"": model})}
        for slot, value in self.values.items():
            if slot.role is TensorRole.GRADIENT:
                parameter = held[TensorRole.PARAMETER, slot.name]
                parameter.grad = around(value.clone(), parameter)
            elif slot.role is TensorRole.STATE:
                if optimizer is not None:
                    _store_state(optimizer, held, slot, value)
            elif slot.role is not TensorRole.LOSS:
                local_part(held[slot.role, slot.name]).copy_(value)


@dataclass(frozen=True, eq=False)
class CapturedStep(CapturedGraph):
    """A step graph with the names of what goes in and what comes out."""

    signature: StepSignature = field(default_factory=lambda: StepSignature((), ()))

    @staticmethod
    def of(captured: CapturedGraph) -> CapturedStep:
        """A step that was saved and loaded, ready to run again."""
        fields = {f.name: getattr(captured, f.name) for f in dataclasses.fields(CapturedGraph)}
        return CapturedStep(**fields, signature=read_signature(captured.gm))

    def run(self, model: nn.Module, batch: Any, optimizer: Optimizer | None = None) -> StepResult:
        """Execute the graph on this rank's tensors. The model must be built and wrapped as the captured one was."""
        self._check_place()
        inputs = self._bind(model, batch, optimizer)
        with torch.no_grad():
            results = self.gm(*inputs)
        return StepResult(dict(zip(self.signature.outputs, results, strict=True)))

    def _check_place(self) -> None:
        world = current_world("CapturedStep.run")
        if (world.size, world.rank) != (self.world_size, self.rank):
            raise GroupError(
                f"the graph of rank {self.rank} of {self.world_size} cannot run on rank {world.rank} of {world.size}",
                where=f"captured graph {self.name!r}",
                next_step="capture for this rank: its offsets into sharded tensors are constants of the graph",
            )
        for name, ranks in self.groups.items():
            try:
                here = _torch.process_group_ranks(name)
            except LookupError:
                here = ()
            if here != tuple(ranks):
                raise GroupError(
                    f"group {name!r} was {list(ranks)} where the graph was captured, and is {list(here)} here",
                    where=f"captured graph {self.name!r}",
                    next_step="create meshes and groups in the same order in both places, or capture here",
                )

    def _bind(self, model: nn.Module, batch: Any, optimizer: Optimizer | None) -> list[Tensor]:
        given: dict[Slot, Tensor] = {}
        for held in held_tensors({"": model}):
            given[Slot(held.role, held.name)] = local_part(held.tensor)
        for path, leaf in zip(_torch.tree_paths(batch), _torch.tree_flatten(batch)[0], strict=True):
            if isinstance(leaf, Tensor):
                given[Slot(TensorRole.BATCH, path)] = local_part(leaf)
        given |= self._state(model, optimizer)
        placeholders = self.gm.graph.find_nodes(op="placeholder")
        return [
            _checked(slot, given.get(slot), tensor_of(node))
            for slot, node in zip(self.signature.inputs, placeholders, strict=True)
        ]

    def _state(self, model: nn.Module, optimizer: Optimizer | None) -> dict[Slot, Tensor]:
        slots = [slot for slot in self.signature.inputs if slot.role is TensorRole.STATE]
        if not slots:
            return {}
        if optimizer is None:
            raise CaptureError(
                "the graph updates the parameters and needs the optimizer's state",
                where=f"captured graph {self.name!r}",
                next_step="pass the optimizer to run()",
            )
        parameters = {h.name: h.tensor for h in held_tensors({"": model}) if h.role is TensorRole.PARAMETER}
        nodes = dict(zip(self.signature.inputs, self.gm.graph.find_nodes(op="placeholder"), strict=True))
        found: dict[Slot, Tensor] = {}
        for slot in slots:
            name, key = slot.owner_and_key
            value = optimizer.state.get(parameters[name], {}).get(key)
            found[slot] = _zeros(optimizer, slot, tensor_of(nodes[slot])) if value is None else local_part(value)
        return found


def _zeros(optimizer: Optimizer, slot: Slot, like: Tensor) -> Tensor:
    if not starts_from_zeros(optimizer):
        raise CaptureError(
            f"the {type(optimizer).__name__} has no {slot} yet, and its first values are not zeros",
            where="CapturedStep.run",
            next_step="let it take one step in the usual way before the first run",
        )
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)


def _store_state(optimizer: Optimizer, held: Mapping[Any, Tensor], slot: Slot, value: Tensor) -> None:
    name, key = slot.owner_and_key
    parameter = held[TensorRole.PARAMETER, name]
    state = optimizer.state[parameter]
    if isinstance(state.get(key), Tensor):
        local_part(state[key]).copy_(value)
    else:
        state[key] = around(value.clone(), parameter) if value.shape == local_part(parameter).shape else value.clone()


def _checked(slot: Slot, value: Tensor | None, expected: Tensor) -> Tensor:
    if value is None:
        raise CaptureError(
            f"the graph takes {slot}, and there is none",
            where="CapturedStep.run",
            next_step="pass the model, batch and optimizer that were captured, or ones built alike",
        )
    sizes = zip(value.shape, expected.shape, strict=False)
    fits = value.dtype == expected.dtype and value.ndim == expected.ndim
    if not fits or any(isinstance(size, int) and size != have for have, size in sizes):
        raise CaptureError(
            f"{slot} is {value.dtype} {list(value.shape)}, the graph takes {expected.dtype} {list(expected.shape)}",
            where="CapturedStep.run",
            next_step="capture again with these shapes, or with dynamic=True",
        )
    return value
