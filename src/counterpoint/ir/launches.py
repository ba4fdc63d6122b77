"""The collectives of a graph in the order of their starts: what all ranks of a group must have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from counterpoint.ir import ops
from counterpoint.ir.collective import Payload, read_collective
from counterpoint.ir.ops import Kind
from counterpoint.ir.provenance import origins_of
from counterpoint.ir.reason import Refusal

UNEQUAL_SIZES = frozenset({Kind.ALL_TO_ALL})
"""Ranks may send different amounts, so sizes say nothing."""
UNEQUAL_KINDS = frozenset({Kind.SEND, Kind.RECV, Kind.P2P_BATCH, Kind.WAIT})
"""What one rank does is not what the other does."""
LIBRARY = ("_c10d_functional", "_dtensor")
"""Ranks may use any of its forms; another way of communicating must be that of all."""
ANY = "?"
"""Stands for a size that is a symbol on this rank, and perhaps a number on another."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start."""

    group: str
    kind: str
    reduce_op: str
    tensors: tuple[str, ...]
    """What is sent, `float32 4x?`."""
    node: str
    """For messages; it may have another name on another rank."""
    origins: tuple[str, ...] = ()
    """The collectives of the input graph that it does the work of, for messages too."""
    way: str = ""
    """The operator, where the ranks do not meet in the communication library, which has several forms of one thing."""

    def matches(self, other: Launch) -> bool:
        """Whether two ranks can meet in this collective. How each calls the group is its own affair."""
        one, two = ((x.kind, x.way, x.reduce_op, len(x.tensors)) for x in (self, other))
        return one == two and all(map(_same_tensor, self.tensors, other.tensors))

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"tensors": list(self.tensors), "origins": list(self.origins)}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Launch:
        """The launch of plain data."""
        return Launch(**{**data, "tensors": tuple(data["tensors"]), "origins": tuple(data.get("origins", ()))})

    def __str__(self) -> str:
        words = [self.kind, self.reduce_op, ", ".join(self.tensors), f"by {self.way}" if self.way else ""]
        return " ".join(word for word in words if word)


def launches_of(graph: Graph) -> tuple[Launch, ...]:
    """All collectives of a graph that every rank of a named group starts alike, in graph order."""
    return tuple(_launches(graph))


def _launches(graph: Graph) -> Iterator[Launch]:
    for node in graph.nodes:
        launch = _read(node) if ops.is_collective(node) else None
        if launch is not None:
            yield launch


def _read(node: Node) -> Launch | None:
    found = read_collective(node)
    if isinstance(found, Refusal) or found.group.name is None or found.kind in UNEQUAL_KINDS:
        return None
    return Launch(
        group=found.group.name,
        kind=found.kind.value,
        reduce_op=found.reduce_op or "",
        tensors=tuple(_tensors(found.sent, sized=found.kind not in UNEQUAL_SIZES)),
        node=node.name,
        origins=origins_of(node),
        way=_way(found.spec.name),
    )


def _way(operator: str) -> str:
    """The operator, whether or not it works in place; nothing where the library runs it."""
    return "" if operator.startswith(LIBRARY) else operator.removesuffix("_out").removesuffix("_")


def _tensors(sent: Payload, *, sized: bool) -> Iterator[str]:
    for dtype, shape in zip(sent.dtypes, sent.shapes, strict=True):
        sizes = [str(size) if sized and not isinstance(size, torch.SymInt) else ANY for size in shape]
        yield f"{str(dtype).removeprefix('torch.')} {'x'.join(sizes) or 'scalar'}"


def _same_tensor(one: str, other: str) -> bool:
    (dtype, sizes), (other_dtype, other_sizes) = one.split(" "), other.split(" ")
    pairs = list(zip(sizes.split("x"), other_sizes.split("x"), strict=False))
    same_rank = sizes.count("x") == other_sizes.count("x")
    return dtype == other_dtype and same_rank and all(a == b or ANY in (a, b) for a, b in pairs)
