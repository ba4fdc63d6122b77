"""What an operator takes on a processor, roughly: the longer of its arithmetic and its memory traffic.

Good enough to tell how much compute there is for communication to hide behind. What cannot be estimated takes no time,
so nothing is planned to hide behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node
from torch.utils.flop_counter import flop_registry

from counterpoint._torch import size_hint
from counterpoint.ir import effects, metadata, ops


@dataclass(frozen=True, kw_only=True)
class Processor:
    """Sustained rates of one device, or of one thread of a CPU."""

    gflops: float
    """Billions of floating-point operations a second in matrix products."""
    memory_gb_per_s: float
    """Billions of bytes read or written a second, for tensors that do not fit a cache."""

    launch_us: float
    """What starting a collective and waiting for it keeps the compute stream from computing."""

    def arithmetic_us(self, flop: float) -> float:
        """The time of so many operations."""
        return flop / (self.gflops * 1e3)

    def memory_us(self, nbytes: float) -> float:
        """The time to read or write so many bytes."""
        return nbytes / (self.memory_gb_per_s * 1e3)


PROCESSORS: Mapping[str, Processor] = MappingProxyType(
    {
        # One thread of a server core with AVX-512: 65-100 GFLOP/s in products of 128 to 1024 squared; copying 33 MB
        # into fresh memory, 3.4 GB/s read and written; 40 GB/s and more within the cache (our measurement, torch 2.13).
        "cpu": Processor(gflops=80, memory_gb_per_s=5, launch_us=50),
        # H100 data sheet: 989 TFLOP/s dense bfloat16, of which about half is sustained; 3.35 TB/s.
        "cuda": Processor(gflops=500e3, memory_gb_per_s=3000, launch_us=10),
    }
)
"""Processors by device type."""


def processor_of(device_type: str) -> Processor:
    """A usual processor of the type; accelerators that we do not know count as one that we do."""
    return PROCESSORS.get(device_type, PROCESSORS["cuda"])


def elapsed_us(nodes: Iterable[Node], processor: Processor) -> tuple[float, ...]:
    """For each node how long those before it compute; after the last the whole time."""
    return tuple(accumulate((node_us(node, processor) for node in nodes), initial=0.0))


def node_us(node: Node, processor: Processor) -> float:
    """The time of one node. Views, communication and what has no metadata take none."""
    if node.op != "call_function" or ops.is_collective(node) or ops.is_wait(node) or effects.is_view_like(node):
        return 0.0
    made = _tensors(node)
    traffic = sum(_nbytes(tensor) for source in (*node.all_input_nodes, node) for tensor in _tensors(source))
    return max(processor.memory_us(traffic), processor.arithmetic_us(_flop(node))) if made else 0.0


def _tensors(node: Node) -> tuple[torch.Tensor, ...]:
    return metadata.tensors_of(node) if metadata.has_value(node) else ()


def _nbytes(tensor: torch.Tensor) -> int:
    return size_hint(metadata.nbytes_of(tensor)) or 0


def _flop(node: Node) -> int:
    """Operations of products, convolutions and attention, by torch's own formulas."""
    formula: Any = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return 0
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
    try:
        return size_hint(formula(*args, **kwargs, out_val=node.meta["val"])) or 0
    except Exception:
        # The formulas are not written for every overload, and an estimate must never fail a compile.
        return 0
