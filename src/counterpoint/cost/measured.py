"""Measured times: of collectives by kind, layout and size, and of operators by what they compute.

One JSON file that all ranks read, so that all decide alike. Between two measured sizes the time is interpolated; beyond
the largest it grows as between the last two.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from counterpoint._torch import OpOverload, operator_name, size_hint
from counterpoint.cost.link import Link, traffic_bytes
from counterpoint.cost.network import moved
from counterpoint.cost.table import Layout, layout_of
from counterpoint.errors import OptionError
from counterpoint.ir.ops import Kind

SCHEMA = 1
Curve = tuple[tuple[float, float], ...]
"""Points (bytes, microseconds), by rising bytes; microseconds never fall."""


@dataclass(frozen=True)
class MeasuredTable:
    """What was measured. Empty where nothing was."""

    collectives: Mapping[tuple[Kind, Layout], Curve] = field(default_factory=dict)
    operators: Mapping[str, float] = field(default_factory=dict)
    """Microseconds by `operator_key`."""
    origin: str = ""
    """Where and how it was measured, in words."""
    device_type: str = "cpu"
    """The kind of device whose collectives were measured."""
    estimate_scale: float = 1.0
    """How many times as long operators take that formulas tell of; see `counterpoint.cost.fit`."""

    def collective_us(self, kind: Kind, nbytes: float, ranks: Sequence[int]) -> float | None:
        """The measured time of a collective, None where its kind was not measured on groups of this layout."""
        curve = self.collectives.get((kind, layout_of(ranks))) if ranks else None
        return _at(curve, nbytes) if curve else None

    def link(self, ranks: Sequence[int]) -> Link | None:
        """The link of a group by two numbers, from the first kind that was measured on its layout."""
        for kind in (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.BROADCAST):
            curve = self.collectives.get((kind, layout_of(ranks)), ()) if ranks else ()
            link = _link(moved(kind, self.device_type), curve, len(ranks))
            if link is not None:
                return link
        return None

    def merged(self, other: MeasuredTable) -> MeasuredTable:
        """Both tables; the other's entries where both have one."""
        return MeasuredTable(
            {**self.collectives, **other.collectives},
            {**self.operators, **other.operators},
            "; ".join(filter(None, (self.origin, other.origin))),
            self.device_type if self.collectives else other.device_type,
            other.estimate_scale if other.operators else self.estimate_scale,
        )

    @property
    def identity(self) -> str:
        """Equal for tables of equal content."""
        data = {key: value for key, value in self.to_data().items() if key != "origin"}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    def to_data(self) -> dict[str, Any]:
        """Plain data for a file."""
        rows = [
            {"kind": kind.value, "ranks": list(layout), "points": [list(map(float, point)) for point in curve]}
            for (kind, layout), curve in self.collectives.items()
        ]
        rows.sort(key=lambda row: (row["kind"], row["ranks"]))
        operators = dict(sorted(self.operators.items()))
        head = {"schema": SCHEMA, "origin": self.origin, "device_type": self.device_type}
        scale = {} if self.estimate_scale == 1.0 else {"estimate_scale": self.estimate_scale}
        return {**head, **scale, "collectives": rows, "operators": operators}

    @staticmethod
    def from_data(data: Any, where: str = "table") -> MeasuredTable:
        """The table of a file; OptionError where it is none."""
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise OptionError(
                f"this is no table of measured times of schema {SCHEMA}",
                where=where,
                next_step="write one with `counterpoint calibrate`",
            )
        try:
            curves = {
                (Kind(row["kind"]), tuple(int(rank) for rank in row["ranks"])): curve_of(row["points"])
                for row in data.get("collectives", ())
            }
            operators = {str(key): float(us) for key, us in data.get("operators", {}).items()}
            scale = float(data.get("estimate_scale", 1.0))
            if not 0 < scale < float("inf"):
                raise ValueError(f"estimates cannot take {scale} times as long")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OptionError(
                f"the table of measured times is damaged: {error!r}", where=where, next_step="measure again"
            ) from error
        origin, device_type = str(data.get("origin", "")), str(data.get("device_type", "cpu"))
        return MeasuredTable(curves, operators, origin, device_type, scale)

    def save(self, path: str | Path) -> None:
        """Write the table to a file."""
        Path(path).write_text(json.dumps(self.to_data(), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> MeasuredTable:
        """The table of a file."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise OptionError(
                f"the table of measured times cannot be read: {error}",
                where=str(path),
                next_step="write one with `counterpoint calibrate`",
            ) from error
        return MeasuredTable.from_data(data, str(path))


def curve_of(points: Any) -> Curve:
    """Points as a curve: by rising size, and never falling, since noise must not make a larger message the quicker."""
    found: list[tuple[float, float]] = []
    for nbytes, us in sorted((float(nbytes), float(us)) for nbytes, us in points):
        if not (nbytes >= 0 and 0 <= us < float("inf")):
            raise ValueError(f"{nbytes} bytes cannot take {us} us")
        us = max(us, found[-1][1]) if found else us
        if found and found[-1][0] == nbytes:
            found.pop()
        found.append((nbytes, us))
    return tuple(found)


def _link(kind: Kind, curve: Curve, ranks: int) -> Link | None:
    """The first point is nearly all latency. Of those that take twice as long and more, the middle bandwidth counts."""
    if not curve or ranks < 2:
        return None
    latency_us = curve[0][1]
    gbps = [
        traffic_bytes(kind, nbytes, ranks) * 8 / ((us - latency_us) * 1e3)
        for nbytes, us in curve
        if us > 0 and us >= 2 * latency_us
    ]
    usable = [one for one in gbps if one > 0]
    return Link(latency_us=latency_us, bandwidth_gbps=median(usable)) if usable else None


def _at(curve: Curve, nbytes: float) -> float:
    sizes = [size for size, _ in curve]
    if len(curve) < 2 or nbytes <= sizes[0]:
        return curve[0][1]
    index = min(bisect_left(sizes, nbytes), len(curve) - 1)
    (low, low_us), (high, high_us) = curve[index - 1], curve[index]
    return low_us + (high_us - low_us) * (nbytes - low) / (high - low)


TENSORS_ONLY = frozenset({"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"})
"""Products, whose time the sizes of their tensors tell alone, so that a profiler's record of them is enough."""


def operator_key(node: Node, device_type: str | None = None) -> str | None:
    """What an operator computes, in text that is equal for equal work: name, types and sizes of tensors, constants.
    None where a size has no hint. device_type: the device that is meant, where it is not the tensors' own."""
    if not isinstance(node.target, OpOverload):
        return None
    name = "::".join(operator_name(node.target)[:2])
    text = _Texts(device_type).text
    try:
        if name in TENSORS_ONLY:
            tensors = [value for value in node.args if isinstance(value, Node)]
            return product_key(name, list(map(text, tensors)))
        values = [*node.args, *(f"{name}={text(value)}" for name, value in sorted(node.kwargs.items()))]
        return f"{node.target}({', '.join(map(text, values))})"
    except _NoHint:
        return None


def product_key(name: str, operands: Sequence[str]) -> str:
    """The key of one of `TENSORS_ONLY`, from the texts of its tensors in order."""
    return f"{name}({', '.join(operands)})"


def tensor_text(device_type: str, dtype: str, sizes: Sequence[object]) -> str:
    """A tensor, as keys of operators tell it."""
    return f"{device_type} {dtype}[{', '.join(map(str, sizes))}]"


class _NoHint(Exception):
    """A size that is only known at run time."""


class _Texts(NamedTuple):
    """Writes arguments as keys of operators tell them."""

    device_type: str | None

    def text(self, value: Any) -> str:
        """One argument."""
        if isinstance(value, Node):
            value = value.meta.get("val")
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            return tensor_text(self.device_type or value.device.type, dtype, list(map(self.text, value.shape)))
        if isinstance(value, torch.SymInt):
            hint = size_hint(value)
            if hint is None:
                raise _NoHint
            return str(hint)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self.text, value))}]"
        return value if isinstance(value, str) else repr(value)
