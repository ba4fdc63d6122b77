"""What one device sustains, by kind of work and element type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch


@dataclass(frozen=True, kw_only=True)
class Processor:
    """Sustained rates of one device, or of one thread of a CPU."""

    gflops: float
    """Billions of floating-point operations a second in matrix products of 16-bit elements."""
    memory_gb_per_s: float
    """Billions of bytes read or written a second, for tensors that do not fit a cache."""

    launch_us: float
    """What starting a collective and waiting for it keeps the compute stream from computing."""
    gflops_32: float | None = None
    """The same for 32-bit elements, where it differs."""
    gflops_8: float | None = None
    """The same for 8-bit elements, where it differs."""
    kernel_us: float = 0.0
    """What every kernel takes, however small."""

    def arithmetic_us(self, flop: float, dtype: torch.dtype | None = None) -> float:
        """The time of so many operations on elements of a type."""
        return flop / (self.rate(dtype) * 1e3)

    def rate(self, dtype: torch.dtype | None) -> float:
        """Billions of operations a second on elements of a type."""
        if dtype is None or dtype.itemsize == 2:
            return self.gflops
        if dtype.itemsize == 1:
            return self.gflops_8 or self.gflops
        # Eight-byte elements are rare in products; half the rate of four-byte ones is what data sheets say.
        return (self.gflops_32 or self.gflops) / (2 if dtype.itemsize >= 8 else 1)

    def memory_us(self, nbytes: float) -> float:
        """The time to read or write so many bytes."""
        return nbytes / (self.memory_gb_per_s * 1e3)

    @property
    def text(self) -> str:
        """Equal for equal processors."""
        rates = "/".join(f"{rate:g}" for rate in (self.gflops_8 or self.gflops, self.gflops, self.rate(torch.float32)))
        return (
            f"{rates} GFLOP/s, {self.memory_gb_per_s:g} GB/s, "
            f"launch {self.launch_us:g} us, kernel {self.kernel_us:g} us"
        )


_CPU = Processor(
    # One thread of a server core with AVX-512: 65-100 GFLOP/s in products of 128 to 1024 squared; copying 33 MB
    # into fresh memory, 3.4 GB/s read and written; 40 GB/s and more within the cache (our measurement, torch 2.13).
    gflops=80,
    memory_gb_per_s=5,
    launch_us=50,
)


def _gpu(gflops: float, gflops_8: float, gflops_32: float, memory_gb_per_s: float) -> Processor:
    """A processor from its data sheet: dense rates in GFLOP/s, GB/s.

    Large products sustain some 65 % of the dense rate: products of 8192 x 4096 x 7168 ran at 0.77 of it on an H200 that
    was shared in two, and six whole Llama-8B layers at 0.53 of it, all else counted in (our measurements, torch 2.11).
    Streaming kernels reach some 90 % of the
    memory's rate (BabelStream's results lie at 88-93 %). A kernel on an idle stream takes some 2 us whatever it does.
    """
    return Processor(
        gflops=0.65 * gflops,
        gflops_8=0.65 * gflops_8,
        gflops_32=0.65 * gflops_32,
        memory_gb_per_s=0.9 * memory_gb_per_s,
        launch_us=10,
        kernel_us=2,
    )


PROCESSORS: Mapping[str, Processor] = MappingProxyType(
    {
        "cpu": _CPU,
        # H100 data sheet: 989 TFLOP/s dense bfloat16, of which about half is sustained; 3.35 TB/s.
        "cuda": Processor(gflops=500e3, memory_gb_per_s=3000, launch_us=10),
        # NVIDIA data sheets, SXM parts, dense: bfloat16, fp8, tf32; memory.
        "a100": _gpu(312e3, 312e3, 156e3, 2039),
        "h100": _gpu(989e3, 1979e3, 494e3, 3350),
        "h200": _gpu(989e3, 1979e3, 494e3, 4800),
        "b200": _gpu(2250e3, 4500e3, 1100e3, 8000),
        # L40S data sheet: 362 TFLOP/s dense bfloat16, 864 GB/s.
        "l40s": _gpu(362e3, 733e3, 183e3, 864),
        # AMD data sheet of the MI300X, dense.
        "mi300x": _gpu(1307e3, 2615e3, 653e3, 5300),
    }
)
"""Processors by device type, and by the name of the part."""


def processor_of(device_type: str) -> Processor:
    """A usual processor of the type; accelerators that we do not know count as one that we do."""
    return PROCESSORS.get(device_type, PROCESSORS["cuda"])
