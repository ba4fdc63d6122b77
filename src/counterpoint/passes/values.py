"""Comparing what two states of a graph compute, on simulated ranks and small integers: the paranoid check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from counterpoint.errors import CounterpointError
from counterpoint.ir.evaluate import evaluate
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.samples import sample_inputs

LARGEST_WORLD = 16
LARGEST_BYTES = 2**30
"""Beyond these, values are not compared: every rank's tensors would live in this process at once."""


class ValueCheck:
    """What the input graph computes on every rank, and whether a later state of it computes the same."""

    def __init__(self, gm: GraphModule, groups: GroupTable, bitwise: bool) -> None:
        self._gm, self._groups, self._bitwise = gm, groups, bitwise
        self._inputs: list[list[Any]] = []
        self._expected: tuple[tuple[Any, ...], ...] | None = None

    def prepare(self) -> str:
        """Evaluate the input graph. Returns why that cannot be done, or nothing."""
        world = max(1, self._groups.world_size)
        if world > LARGEST_WORLD:
            return f"values were not compared: {world} ranks are more than the {LARGEST_WORLD} that are simulated"
        try:
            self._inputs = sample_inputs(self._gm, world)
            held = sum(t.nbytes for inputs in self._inputs for t in inputs if isinstance(t, torch.Tensor))
            if held > LARGEST_BYTES:
                return f"values were not compared: the inputs of {world} ranks take {held / 2**30:.1f} GiB"
            self._expected = self._evaluate()
        except Exception as error:
            # Whatever operator the graph holds runs here on made-up values, which it may refuse in any way it likes.
            return f"values were not compared: the input graph cannot be evaluated: {error}"
        return ""

    @property
    def can_compare(self) -> bool:
        """Whether the input graph could be evaluated."""
        return self._expected is not None

    def compare(self) -> Iterator[str]:
        """The differences of the graph as it is now, in words."""
        if self._expected is None:
            return
        try:
            found = self._evaluate()
        except CounterpointError as error:
            yield f"the graph can no longer be evaluated on simulated ranks: {error}"
            return
        for rank, (old, new) in enumerate(zip(self._expected, found, strict=True)):
            for index, difference in enumerate(_differences(old, new, self._bitwise)):
                if difference:
                    yield f"output {index} on rank {rank}: {difference}"

    def _evaluate(self) -> tuple[tuple[Any, ...], ...]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return evaluate(self._gm, self._inputs, self._groups)


def _differences(old: Sequence[Any], new: Sequence[Any], bitwise: bool) -> Iterator[str]:
    if len(old) != len(new):
        yield f"{len(old)} outputs became {len(new)}"
        return
    tolerance = 0.0 if bitwise else None
    for one, other in zip(old, new, strict=True):
        try:
            torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False)
        except AssertionError as error:
            yield str(error).replace("\n", " ")
        except TypeError:
            # Outputs that are neither tensors nor numbers.
            yield "" if one == other else f"{one!r} became {other!r}"
        else:
            yield ""
