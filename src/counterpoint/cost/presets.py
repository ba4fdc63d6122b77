"""Topologies by name, each constant with where it comes from, and the reading of one from a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from counterpoint.cost.link import Link
from counterpoint.cost.processor import PROCESSORS, Processor
from counterpoint.cost.topology import Level, Topology
from counterpoint.errors import OptionError
from counterpoint.options.fields import near_names
from counterpoint.options.toml_text import parse_toml

# NCCL 2.2x, src/graph/tuning.cc: base latencies of the ring protocols LL, LL128 and Simple, and of a step over NVLink,
# PCIe and the network, in microseconds.
_NCCL_CALL_US = (6.6, 14.0, 8.4)
_NVLINK_STEP_US = (0.6, 1.9, 3.4)
_PCIE_STEP_US = (1.0, 2.5, 5.7)
_NETWORK_STEP_US = (2.7, 4.0, 14.0)
# LL sends a flag with every 4 bytes, LL128 one with every 120: what is left of the link. NCCL plans LL with a quarter,
# because it cannot fill the link.
_WAY_SHARES = (0.25, 0.9375, 1.0)

# NCCL, src/graph/topo.h: GB/s that one NVLink carries each way; links a GPU by the data sheets.
_NVLINK_GBPS = {"a100": 12 * 20.0 * 8, "h100": 18 * 20.6 * 8, "h200": 18 * 20.6 * 8, "b200": 18 * 40.1 * 8}
# PCIe 4.0 x16 carries 31.5 GB/s each way, 5.0 twice that; NCCL plans with 80 % of it (src/graph/topo.h).
_PCIE4_GBPS, _PCIE5_GBPS = 0.8 * 31.5 * 8, 0.8 * 63 * 8
# Seven Infinity Fabric links of 64 GB/s each way (AMD's data sheet). AMD's acceptance test expects 304 GB/s of RCCL's
# all-reduce over the eight.
_MI300X_GBPS = 304 * 8
# Of what is nominal, headers and flow control leave 96 % on InfiniBand (perftest on 400 Gbit/s adapters reports some
# 48 GB/s) and 95 % on Ethernet (1500-byte frames: 1448 bytes of payload for 1538 on the wire; our measurement,
# 120 MB/s at 1 Gbit/s).
_IB_SHARE, _ETHERNET_SHARE = 0.96, 0.95
# gloo between two namespaces over a virtual pair: 0.24 ms for an all-reduce of 4 bytes, which is two steps (our
# measurement, torch 2.13). Most of it is handing the call to another thread.
_GLOO_CALL_US, _GLOO_STEP_US = 150.0, 45.0


def _ways(steps_us: tuple[float, ...], gbps: float) -> tuple[Link, ...]:
    return tuple(
        Link(latency_us=step, bandwidth_gbps=gbps * share) for step, share in zip(steps_us, _WAY_SHARES, strict=True)
    )


def _nvlink_box(gpu: str, network_gbps: float) -> Topology:
    """Eight GPUs behind NVLink switches, a network card for each."""
    inside = Level(
        name="node",
        ways=_ways(_NVLINK_STEP_US, _NVLINK_GBPS[gpu]),
        ranks=8,
        peer_access=True,
        # Switches that add up and copy came with the third generation, in boxes of Hopper GPUs.
        multicast=gpu != "a100",
        copy_engines=2,
    )
    return _box(f"{gpu}x8-ib{network_gbps:g}", gpu, inside, network_gbps * _IB_SHARE)


def _box(name: str, processor: str, inside: Level, network_gbps: float, ports: int | None = None) -> Topology:
    outside = Level(name="network", ways=_ways(_NETWORK_STEP_US, network_gbps), ports=ports)
    return Topology(
        name=name, levels=(inside, outside), processor=PROCESSORS[processor], device_type="cuda", call_us=_NCCL_CALL_US
    )


def _pcie_box(gpu: str, generation: int, ethernet_gbps: float) -> Topology:
    """Eight GPUs on PCIe, which share one network card."""
    gbps = _PCIE4_GBPS if generation == 4 else _PCIE5_GBPS
    inside = Level(name="node", ways=_ways(_PCIE_STEP_US, gbps), ranks=8, copy_engines=2)
    name = f"{gpu}x8-pcie{generation}-eth{ethernet_gbps:g}"
    return _box(name, gpu, inside, ethernet_gbps * _ETHERNET_SHARE, ports=1)


def _amd_box() -> Topology:
    inside = Level(name="node", ways=_ways(_NVLINK_STEP_US, _MI300X_GBPS), ranks=8, peer_access=True, copy_engines=2)
    return _box("mi300x8-ib400", "mi300x", inside, 400 * _IB_SHARE)


def _cpu_hosts(gigabits: float) -> Topology:
    """Hosts of one rank each, gloo between them."""
    link = Link(latency_us=_GLOO_STEP_US, bandwidth_gbps=gigabits * _ETHERNET_SHARE)
    return Topology(
        name=f"cpu-{gigabits:g}g",
        levels=(Level(name="network", ways=(link,)),),
        processor=PROCESSORS["cpu"],
        device_type="cpu",
        call_us=(_GLOO_CALL_US,),
    )


_ALL = (
    *(_nvlink_box("a100", gbps) for gbps in (200,)),
    *(_nvlink_box(gpu, gbps) for gpu in ("h100", "h200") for gbps in (400,)),
    *(_nvlink_box("b200", gbps) for gbps in (400, 800)),
    _amd_box(),
    _pcie_box("a100", 4, 100),
    _pcie_box("l40s", 4, 100),
    _pcie_box("h100", 5, 200),
    *(_cpu_hosts(gigabits) for gigabits in (1, 10, 25, 100)),
)

PRESETS: Mapping[str, Topology] = MappingProxyType({preset.name: preset for preset in _ALL})
"""The topologies that have a name."""


def topology(name_or_path: str | Path) -> Topology:
    """A topology by name, or from a TOML file; OptionError names near ones."""
    found = PRESETS.get(str(name_or_path))
    if found is not None:
        return found
    path = Path(name_or_path)
    if path.suffix == ".toml" or path.is_file():
        return _from_file(path)
    near = near_names(str(name_or_path), PRESETS)
    raise OptionError(
        f"no topology is called {str(name_or_path)!r}; known: {', '.join(PRESETS)}",
        next_step=f"did you mean {near}?" if near else "or give the path of a .toml file",
    )


def _from_file(path: Path) -> Topology:
    try:
        written = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"the topology cannot be read: {error}", where=str(path), next_step="check the path"
        ) from error
    return topology_from_data(parse_toml(written, str(path)), str(path))


_KEYS = {"name": str, "processor": object, "device_type": str, "call_us": object, "levels": list}
_LEVEL_KEYS = {
    "name": str,
    "ranks": int,
    "ports": int,
    "latency_us": object,
    "bandwidth_gbps": object,
    "peer_access": bool,
    "multicast": bool,
    "copy_engines": int,
}
_PROCESSOR_KEYS = dict.fromkeys(
    ("gflops", "memory_gb_per_s", "launch_us", "gflops_32", "gflops_8", "kernel_us"), object
)


def topology_from_data(data: Mapping[str, Any], where: str) -> Topology:
    """A topology from plain tables; OptionError names what is unknown, missing or of the wrong type."""
    _known(data, _KEYS, where, required=("levels",))
    tables = data["levels"]
    calls = _numbers(data.get("call_us", [0.0]), f"call_us of {where}")
    return Topology(
        name=data.get("name", Path(where).stem),
        levels=tuple(_level(table, f"levels[{number}] of {where}") for number, table in enumerate(tables)),
        processor=_processor(data.get("processor", data.get("device_type", "cuda")), where),
        device_type=data.get("device_type", "cpu" if data.get("processor") == "cpu" else "cuda"),
        call_us=calls,
    )


def _level(table: Any, where: str) -> Level:
    if not isinstance(table, Mapping):
        raise OptionError("a level is a table", where=where, next_step="write [[levels]]")
    _known(table, _LEVEL_KEYS, where, required=("name", "latency_us", "bandwidth_gbps"))
    latencies = _numbers(table["latency_us"], f"latency_us of {where}")
    bandwidths = _numbers(table["bandwidth_gbps"], f"bandwidth_gbps of {where}")
    if len(latencies) != len(bandwidths):
        raise OptionError("a level needs as many latencies as bandwidths", where=where)
    ways = tuple(Link(latency_us=a, bandwidth_gbps=b) for a, b in zip(latencies, bandwidths, strict=True))
    rest = {key: table[key] for key in table if key not in ("latency_us", "bandwidth_gbps")}
    return Level(ways=ways, **rest)


def _processor(given: Any, where: str) -> Processor:
    if isinstance(given, Mapping):
        _known(given, _PROCESSOR_KEYS, f"processor of {where}", required=("gflops", "memory_gb_per_s"))
        values = {key: _numbers(value, f"processor.{key} of {where}")[0] for key, value in given.items()}
        return Processor(**{"launch_us": 10.0, **values})
    found = PROCESSORS.get(given) if isinstance(given, str) else None
    if found is None:
        near = near_names(str(given), PROCESSORS)
        raise OptionError(
            f"no processor is called {given!r}; known: {', '.join(PROCESSORS)}",
            where=where,
            next_step=f"did you mean {near}?" if near else "or write a table [processor]",
        )
    return found


def _known(table: Mapping[str, Any], keys: Mapping[str, type], where: str, required: tuple[str, ...]) -> None:
    for key, value in table.items():
        if key not in keys:
            near = near_names(key, keys)
            raise OptionError(
                f"a topology has no {key!r}; known here: {', '.join(keys)}",
                where=where,
                next_step=f"did you mean {near}?" if near else None,
            )
        if not isinstance(value, keys[key]) or (keys[key] is int and isinstance(value, bool)):
            raise OptionError(f"{key!r} cannot be {value!r}: expected {keys[key].__name__}", where=where)
    for key in required:
        if key not in table:
            raise OptionError(f"{key!r} is missing", where=where, next_step=f"add {key}")


def _numbers(value: Any, where: str) -> tuple[float, ...]:
    values = value if isinstance(value, (list, tuple)) else [value]
    if not values or any(isinstance(one, bool) or not isinstance(one, (int, float)) for one in values):
        raise OptionError(f"{value!r} is no number, nor a list of numbers", where=where)
    return tuple(float(one) for one in values)
