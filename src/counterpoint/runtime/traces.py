"""A table of measured times from traces of torch's profiler (Kineto), of one rank or of several.

Collectives come from NCCL's kernels, whose events tell kind, elements, type and ranks, and from gloo's events, which
tell the input. Products come from the operators' events where shapes were recorded, with the time of their kernels
where there are any. The shortest time of equal work counts: what is longer has waited for somebody.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from counterpoint.cost.measured import TENSORS_ONLY, MeasuredTable, curve_of, product_key, tensor_text
from counterpoint.cost.table import Layout, layout_of
from counterpoint.errors import OptionError
from counterpoint.ir.ops import Kind

_NCCL_KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "allreduce": Kind.ALL_REDUCE,
        "allreduce_coalesced": Kind.ALL_REDUCE,
        "_allgather_base": Kind.ALL_GATHER,
        "all_gather": Kind.ALL_GATHER,
        "allgather": Kind.ALL_GATHER,
        "allgather_into_tensor_coalesced": Kind.ALL_GATHER,
        "_reduce_scatter_base": Kind.REDUCE_SCATTER,
        "reduce_scatter": Kind.REDUCE_SCATTER,
        "reduce_scatter_tensor_coalesced": Kind.REDUCE_SCATTER,
        "all_to_all": Kind.ALL_TO_ALL,
        "all_to_allv": Kind.ALL_TO_ALL,
        "broadcast": Kind.BROADCAST,
        "reduce": Kind.REDUCE,
        "send": Kind.SEND,
        "recv": Kind.RECV,
    }
)
"""What torch's NCCL backend calls a collective in its events."""

_GLOO_KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "gloo:all_reduce": Kind.ALL_REDUCE,
        "gloo:all_gather": Kind.ALL_GATHER,
        "gloo:all_to_all": Kind.ALL_TO_ALL,
        "gloo:broadcast": Kind.BROADCAST,
        "gloo:reduce": Kind.REDUCE,
    }
)

_TYPES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "float": ("float32", 4),
        "double": ("float64", 8),
        "c10::BFloat16": ("bfloat16", 2),
        "BFloat16": ("bfloat16", 2),
        "c10::Half": ("float16", 2),
        "Half": ("float16", 2),
        "Float": ("float32", 4),
        "Double": ("float64", 8),
        "c10::Float8_e4m3fn": ("float8_e4m3fn", 1),
        "Float8_e4m3fn": ("float8_e4m3fn", 1),
        "c10::Float8_e5m2": ("float8_e5m2", 1),
        "Float8_e5m2": ("float8_e5m2", 1),
        "long int": ("int64", 8),
        "Long": ("int64", 8),
        "int": ("int32", 4),
        "Int": ("int32", 4),
        "signed char": ("int8", 1),
        "Char": ("int8", 1),
        "unsigned char": ("uint8", 1),
        "Byte": ("uint8", 1),
        "bool": ("bool", 1),
        "Bool": ("bool", 1),
    }
)
"""Element types as events call them, with their bytes."""

_Key = tuple[Kind, Layout]


def table_from_traces(paths: Sequence[str | Path]) -> MeasuredTable:
    """The shortest times of all work in these traces; OptionError where there is none."""
    collectives: dict[_Key, dict[float, float]] = {}
    operators: dict[str, float] = {}
    on_device = False
    for path in paths:
        trace = _read(Path(path))
        on_device = on_device or any(category == "kernel" for _, category, _, _ in _events(trace))
        for kind, layout, nbytes, us in _collectives(trace):
            points = collectives.setdefault((kind, layout), {})
            points[nbytes] = min(us, points.get(nbytes, us))
        for key, us in _products(trace):
            operators[key] = min(us, operators.get(key, us))
    if not collectives and not operators:
        raise OptionError(
            "the trace holds neither collectives nor products with their shapes",
            where=", ".join(map(str, paths)),
            next_step="record it with torch.profiler.profile(record_shapes=True) around some steps",
        )
    curves = {key: curve_of(points.items()) for key, points in collectives.items()}
    origin = f"profiler trace {', '.join(Path(path).name for path in paths)}"
    return MeasuredTable(curves, operators, origin, "cuda" if on_device else "cpu")


def _read(path: Path) -> Mapping[str, Any]:
    try:
        raw = path.read_bytes()
        data = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except (OSError, EOFError, ValueError) as error:
        raise OptionError(f"the trace cannot be read: {error}", where=str(path), next_step="record it anew") from error
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise OptionError("this is no trace: it has no traceEvents", where=str(path))
    return data


def _events(trace: Mapping[str, Any]) -> Iterator[tuple[str, str, float, Mapping[str, Any]]]:
    """Name, category, microseconds and details of every event that takes time."""
    for event in trace["traceEvents"]:
        if isinstance(event, dict) and event.get("ph") == "X" and isinstance(event.get("args"), dict):
            yield str(event.get("name")), str(event.get("cat")), float(event.get("dur", 0)), event["args"]


def _collectives(trace: Mapping[str, Any]) -> Iterator[tuple[Kind, Layout, float, float]]:
    groups = _groups(trace)
    sizes = {ranks for ranks in groups.values() if len(ranks) > 1}
    only = next(iter(sizes)) if len(sizes) == 1 else None
    for name, category, us, details in _events(trace):
        found = None
        if category == "kernel" and "Collective name" in details:
            found = _nccl(details, groups)
        elif name in _GLOO_KINDS and only is not None:
            # gloo's events do not tell the group, so only a job with one is understood.
            found = _gloo(name, details, only)
        if found is not None:
            yield (*found, us)


def _groups(trace: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    info = trace.get("distributedInfo")
    configured = info.get("pg_config", []) if isinstance(info, dict) else []
    return {str(one["pg_name"]): tuple(one["ranks"]) for one in configured if one.get("ranks")}


def _nccl(details: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]]) -> tuple[Kind, Layout, float] | None:
    kind, width = _NCCL_KINDS.get(str(details["Collective name"])), _TYPES.get(str(details.get("dtype")))
    ranks = _ranks(details, groups)
    if kind is None or width is None or len(ranks) < 2:
        return None
    elements = max(int(details.get("In msg nelems", 0)), int(details.get("Out msg nelems", 0)))
    return kind, layout_of(ranks), float(elements * width[1])


def _ranks(details: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    listed = re.findall(r"\d+", str(details.get("Process Group Ranks", "")))
    # A long list of ranks is cut short with dots.
    if listed and "..." not in str(details["Process Group Ranks"]):
        return tuple(map(int, listed))
    return groups.get(str(details.get("Process Group Name")), tuple(range(int(details.get("Group size", 0)))))


def _gloo(name: str, details: Mapping[str, Any], ranks: tuple[int, ...]) -> tuple[Kind, Layout, float] | None:
    nbytes = 0.0
    for sizes, kind_of in zip(details.get("Input Dims", ()), details.get("Input type", ()), strict=False):
        if kind_of in _TYPES:
            nbytes += _numel(sizes) * _TYPES[kind_of][1]
    kind = _GLOO_KINDS[name]
    whole = nbytes * len(ranks) if kind is Kind.ALL_GATHER else nbytes
    return (kind, layout_of(ranks), whole) if nbytes else None


def _numel(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _products(trace: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    kernels: dict[Any, float] = {}
    for _, category, us, details in _events(trace):
        if category == "kernel" and "External id" in details:
            kernels[details["External id"]] = kernels.get(details["External id"], 0.0) + us
    for name, category, us, details in _events(trace):
        if category == "cpu_op" and name in TENSORS_ONLY and "Input Dims" in details:
            on_device = kernels.get(details.get("External id"))
            operands = _operands(details, "cpu" if on_device is None else "cuda")
            if operands:
                yield product_key(name, operands), us if on_device is None else on_device


def _operands(details: Mapping[str, Any], device_type: str) -> list[str]:
    pairs = zip(details["Input Dims"], details.get("Input type", ()), strict=False)
    return [tensor_text(device_type, _TYPES[kind][0], sizes) for sizes, kind in pairs if kind in _TYPES]
