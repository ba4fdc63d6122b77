"""Edits as data: what listeners are told, how edits are counted, and the error of a transaction that was taken back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import Enum
from typing import NamedTuple

from torch.fx import Node

from counterpoint.errors import EditError
from counterpoint.ir.reason import Refusal


class EditRejected(EditError):
    """A transaction was taken back because its changes cannot stand; `refusal` says why."""

    def __init__(self, refusal: Refusal, why: str) -> None:
        super().__init__(f"the edit was taken back: {refusal}", where=why)
        self.refusal = refusal

    def __reduce__(self) -> tuple[object, ...]:
        return EditRejected, (self.refusal, self.where)


class EditKind(Enum):
    """The kinds of edit. The values are the fields of `EditCounts`."""

    INSERTED = "inserted"
    ERASED = "erased"
    MOVED = "moved"
    REPLACED = "replaced"
    """Every use of one node became a use of another."""
    ARGUMENTS = "arguments"
    """A node was given other arguments, other than by a replacement."""


class Edit(NamedTuple):
    """One edit, as listeners are told of it."""

    kind: EditKind
    node: Node
    new: Node | None = None
    """What a replaced node was replaced by."""


@dataclass(frozen=True)
class EditCounts:
    """How many edits of each kind were made."""

    inserted: int = 0
    erased: int = 0
    moved: int = 0
    replaced: int = 0
    arguments: int = 0

    @staticmethod
    def of(edits: Iterable[Edit]) -> EditCounts:
        """The counts of some edits."""
        counts = {kind.value: 0 for kind in EditKind}
        for edit in edits:
            counts[edit.kind.value] += 1
        return EditCounts(**counts)

    def __add__(self, other: EditCounts) -> EditCounts:
        return EditCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))
