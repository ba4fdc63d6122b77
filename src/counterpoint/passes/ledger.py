"""The ledger: what became of every collective of the input graph. Plain frozen data, exactly one verdict each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from typing import Any

from counterpoint.errors import CounterpointError, PassError

SCHEMA = 1
"""Version of the plain-data form. Fields may be added within a version, never renamed or removed."""


class VerdictKind(Enum):
    """What can become of a collective."""

    FUSED = "fused"
    BUCKETED = "bucketed"
    PIPELINED = "pipelined"
    LOWERED = "lowered"
    HIDDEN = "hidden"
    DEDUPLICATED = "deduplicated"
    LEFT_ALONE = "left-alone"


_JOINED = {
    VerdictKind.FUSED: "into",
    VerdictKind.BUCKETED: "into",
    VerdictKind.PIPELINED: "with",
    VerdictKind.LOWERED: "to",
    VerdictKind.HIDDEN: "behind",
    VerdictKind.DEDUPLICATED: "into",
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one pass did with one collective, or why it did not."""

    kind: VerdictKind
    by: str
    """Text form of the pass; empty when no pass had anything to say."""
    partner: str = ""
    """Into what, with what, to what or behind what: a bucket, a node, an operator."""
    code: str = ""
    """Reason code of a collective left alone, a key of `counterpoint.ir.reason.REASONS`."""
    blocking: str = ""
    """Name of the node in the way."""
    blocking_source: str = ""
    """Where the user's code made the node in the way."""
    detail: str = ""
    hint: str = ""
    before_us: float | None = None
    """What the program was predicted to wait for what was lowered."""
    after_us: float | None = None
    """What it is predicted to wait now."""

    def __str__(self) -> str:
        if self.kind is VerdictKind.LEFT_ALONE:
            return f"left-alone: {self.code}" + (f" at {self.blocking}" if self.blocking else "")
        said = f"{self.kind.value} {_JOINED[self.kind]} {self.partner}" if self.partner else self.kind.value
        if self.before_us is None or self.after_us is None:
            return said
        return f"{said} ({self.before_us:.0f} -> {self.after_us:.0f} us)"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A collective of the input graph, as it was when the ledger was opened."""

    origin: str
    """Stable name within the graph: `forward/all_reduce#3` is the fourth all-reduce of the forward graph."""
    kind: str
    operator: str
    node: str
    group: str = ""
    group_size: int | None = None
    reduce_op: str | None = None
    dtypes: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    nbytes: int | None = None
    """Bytes sent by one rank; None where a size is symbolic."""
    source: str = ""
    """`file:line in function`, the innermost frame of the user's own code."""
    module: str = ""
    """Path of the user's module, `layers.0.mlp`."""
    exposed_before_us: float | None = None
    """Predicted; None without a cost model."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One collective and its verdict."""

    facts: Facts
    verdict: Verdict
    history: tuple[Verdict, ...]
    """All verdicts in the order given; the final one is among them."""
    exposed_after_us: float | None = None


@dataclass(frozen=True)
class Total:
    """How many collectives got a kind of verdict, and their bytes."""

    count: int
    nbytes: int
    """Of those whose size is known."""
    unsized: int
    """Collectives of symbolic size."""
    percent: float


@dataclass(frozen=True)
class Ledger:
    """What became of every collective, in graph order."""

    entries: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        origins = [entry.facts.origin for entry in self.entries]
        if len(set(origins)) != len(origins):
            raise PassError("a collective stands in the ledger twice", where=", ".join(sorted(origins)))

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        counted = (f"{total.count} {kind.value}" for kind, total in self.totals().items())
        return ", ".join(counted) or "no collectives"

    def totals(self) -> dict[VerdictKind, Total]:
        """Totals of the verdicts that occur, in the order of `VerdictKind`. The counts sum to all collectives."""
        found: dict[VerdictKind, Total] = {}
        for kind in VerdictKind:
            of_kind = [entry.facts for entry in self.entries if entry.verdict.kind is kind]
            if of_kind:
                sizes = [facts.nbytes for facts in of_kind if facts.nbytes is not None]
                percent = 100.0 * len(of_kind) / len(self.entries)
                found[kind] = Total(len(of_kind), sum(sizes), len(of_kind) - len(sizes), percent)
        return found

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON, with the version of its schema."""
        return {"schema": SCHEMA, "collectives": [_entry_to_data(entry) for entry in self.entries]}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Ledger:
        """The ledger of plain data; fields that this version does not know are passed over."""
        schema = data.get("schema")
        if schema != SCHEMA:
            raise CounterpointError(
                f"the ledger has schema {schema!r}, this version reads {SCHEMA}",
                next_step="read it with the version of counterpoint that wrote it",
            )
        return Ledger(tuple(_entry_from_data(item) for item in data["collectives"]))


def _entry_to_data(entry: Entry) -> dict[str, Any]:
    facts = asdict(entry.facts)
    facts |= {"dtypes": list(entry.facts.dtypes), "shapes": list(entry.facts.shapes)}
    return facts | {
        "exposed_after_us": entry.exposed_after_us,
        "verdict": _verdict_to_data(entry.verdict),
        "history": [_verdict_to_data(verdict) for verdict in entry.history],
    }


def _verdict_to_data(verdict: Verdict) -> dict[str, Any]:
    return asdict(verdict) | {"kind": verdict.kind.value}


def _entry_from_data(data: Mapping[str, Any]) -> Entry:
    facts = Facts(**known_fields(Facts, data))
    return Entry(
        facts=replace(facts, dtypes=tuple(facts.dtypes), shapes=tuple(facts.shapes)),
        verdict=_verdict_from_data(data["verdict"]),
        history=tuple(_verdict_from_data(verdict) for verdict in data["history"]),
        exposed_after_us=data.get("exposed_after_us"),
    )


def _verdict_from_data(data: Mapping[str, Any]) -> Verdict:
    return Verdict(**{**known_fields(Verdict, data), "kind": VerdictKind(data["kind"])})


def known_fields(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the data that a dataclass of this version has fields for."""
    names = {field.name for field in fields(cls)}
    return {key: value for key, value in data.items() if key in names}
