"""What goes into a step graph and what comes out, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch.fx import GraphModule

from counterpoint.capture.inputs import TensorRole
from counterpoint.errors import CaptureError


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


_NOTE = "counterpoint"
"""Metadata of a node that graph files keep. All of it lies on the placeholders, which no pass replaces."""


def write_signature(gm: GraphModule, signature: StepSignature) -> None:
    """Leave a signature on the placeholders of its graph."""
    outputs = [[slot.role.value, slot.name] for slot in signature.outputs]
    for node, slot in zip(gm.graph.find_nodes(op="placeholder"), signature.inputs, strict=True):
        node.meta[_NOTE] = {"input": [slot.role.value, slot.name], **({"outputs": outputs} if outputs else {})}
        outputs = []


def read_signature(gm: GraphModule) -> StepSignature:
    """The signature on a graph that was captured as a step, perhaps loaded from a file since."""
    notes = [node.meta.get(_NOTE) for node in gm.graph.find_nodes(op="placeholder")]
    try:
        inputs = [Slot(TensorRole(role), name) for role, name in (note["input"] for note in notes)]
        outputs = [Slot(TensorRole(role), name) for role, name in notes[0]["outputs"]]
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise CaptureError(
            "the graph does not say what its inputs and outputs are",
            where="CapturedStep.of",
            next_step="hand over a graph that capture_step made",
        ) from error
    return StepSignature(tuple(inputs), tuple(outputs))
