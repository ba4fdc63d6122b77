"""What goes into a step graph and what comes out, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from counterpoint.capture.inputs import TensorRole


@dataclass(frozen=True)
class Slot:
    """One tensor at the border of a step graph; of a DTensor, the part on this rank."""

    role: TensorRole
    name: str
    """Parameters, their gradients and buffers are named as the module names them; optimizer state has the name of its
    parameter, a dot, and its key; tensors of the batch have their path in it."""

    @property
    def owner_and_key(self) -> tuple[str, str]:
        """Of optimizer state: the name of the parameter, and the optimizer's name for this tensor."""
        owner, _, key = self.name.rpartition(".")
        return owner, key

    def __str__(self) -> str:
        return f"{self.role.value} {self.name}" if self.name else self.role.value


@dataclass(frozen=True)
class StepSignature:
    """The inputs and outputs of a step graph, in the order of its placeholders and of its result."""

    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    """The loss first; then gradients, and where the step updates them, parameters, buffers and optimizer state."""
    batch_structure: Any = None
    """The containers around the tensors of the batch; None after a graph was loaded from a file."""

    def names(self, role: TensorRole) -> tuple[str, ...]:
        """Names of all inputs of one role."""
        return tuple(slot.name for slot in self.inputs if slot.role is role)

    def output_names(self, role: TensorRole) -> tuple[str, ...]:
        """Names of all outputs of one role."""
        return tuple(slot.name for slot in self.outputs if slot.role is role)

    def updates(self) -> Iterator[tuple[int, int]]:
        """Positions (input, output) of each tensor that the step gives a new value."""
        places = {slot: number for number, slot in enumerate(self.inputs)}
        for number, slot in enumerate(self.outputs):
            if slot in places:
                yield places[slot], number


def node_name(slot: Slot) -> str:
    """The name of a slot's placeholder: role and name, with what is no letter or digit replaced."""
    return "_".join("".join(c if c.isalnum() else "_" for c in part) for part in (slot.role.value, slot.name) if part)
