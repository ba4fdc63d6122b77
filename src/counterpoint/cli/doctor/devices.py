"""What processes and devices of this machine can do with each other, as far as one process can tell."""

from __future__ import annotations

import os
import platform
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from counterpoint.cli.doctor.finding import Answer, Probe, absent, broken, works

GLOO_S = 20.0
UNDER_TORCHRUN = "run torchrun --nproc-per-node 2 --no-python counterpoint doctor to try it between processes"


def device_probes() -> tuple[Probe, ...]:
    """All of them."""
    return (
        Probe("backends", "gloo", gloo),
        Probe("backends", "nccl", nccl),
        Probe("backends", "others", others),
        Probe("devices", "processors", processors),
        Probe("devices", "GPUs", gpus),
        Probe("devices", "peer access", peer_access),
        Probe("devices", "multicast", multicast),
        Probe("devices", "symmetric memory", symmetric_memory),
        Probe("devices", "shared memory", shared_memory),
    )


def gloo() -> Answer:
    """Whether a group of one can be made and can add up; the name of the host must be found for it."""
    if not dist.is_gloo_available():
        return absent("this torch was built without it", "without GPUs, install a build of torch that has it")
    try:
        # Not through init_process_group, which would leave a world behind.
        # The type stubs leave most of these names out.
        names: Any = dist
        group = names.ProcessGroupGloo(names.HashStore(), 0, 1, timedelta(seconds=GLOO_S))
        group.allreduce([torch.ones(4)]).wait()
    except RuntimeError as error:
        return broken(
            f"a group of one process cannot be made: {str(error).splitlines()[0]}",
            "name a network interface, export GLOO_SOCKET_IFNAME=lo on one host, or let the host find its own name",
        )
    return works(
        f"a group of one process adds up; interface {os.environ.get('GLOO_SOCKET_IFNAME', 'of the host name')}"
    )


def nccl() -> Answer:
    """Whether there is NCCL, and something for it to do."""
    if not dist.is_nccl_available():
        return absent("this torch was built without it; CPUs use gloo")
    if not torch.cuda.is_available():
        return absent("it is built in, and there is no GPU; CPUs use gloo")
    version = ".".join(map(str, torch.cuda.nccl.version()))
    return works(f"version {version}")


def others() -> Answer:
    """Backends that few builds have."""
    found = {
        "mpi": dist.is_mpi_available(),
        "ucc": dist.is_ucc_available(),
        "xccl": dist.is_xccl_available(),
    }
    here = [name for name, there in found.items() if there]
    return works(", ".join(here)) if here else absent(f"this torch was built without {', '.join(found)}")


def processors() -> Answer:
    """How many processors this process may use, and how many threads each rank would take."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    said = f"{usable} of {os.cpu_count()} usable, torch takes {threads} threads a process"
    return works(said + ("; set OMP_NUM_THREADS=1 where several ranks share them" if threads > 1 else ""))


def gpus() -> Answer:
    """Which there are."""
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        if not built:
            return absent("this torch is built for the CPU; everything works there, with gloo")
        return absent(
            f"torch is built for {built}, and finds no GPU", "check the driver with nvidia-smi, if there are GPUs"
        )
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return works("; ".join(f"{one.name}, {one.total_memory / 2**30:.0f} GiB, {one.major}.{one.minor}" for one in found))


def peer_access() -> Answer:
    """Which GPUs can read each other's memory."""
    count = _gpu_count()
    if count < 2:
        return absent("it takes two GPUs in one host, and there " + ("is one" if count else "are none"))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    without = [f"{a} to {b}" for a, b in pairs if not torch.cuda.can_device_access_peer(a, b)]
    if without:
        return absent(
            f"not from GPU {', '.join(without[:8])}; copies between them go through the host",
            "on PCIe without NVLink this is usual; in virtual machines, access control (ACS) may forbid it",
        )
    return works(f"all {count} GPUs reach each other's memory")


def multicast() -> Answer:
    """Whether the switch between GPUs can add up and copy."""
    from counterpoint._torch import device_has_multicast

    if not _gpu_count():
        return absent("it is a matter of NVLink switches, and there is no GPU")
    without = [number for number in range(_gpu_count()) if not device_has_multicast(number)]
    if without:
        return absent(f"GPU {', '.join(map(str, without))}: not offered; it takes an NVLink switch of Hopper or newer")
    return works("the switch can add up and copy")


def symmetric_memory() -> Answer:
    """Whether torch can allocate what all ranks could map; only a group can tell whether they do."""
    if not _gpu_count():
        return absent("torch's symmetric memory is for GPUs; on CPUs shared memory does its work")
    from counterpoint._torch import allocate_symmetric

    try:
        allocate_symmetric(1 << 20, torch.device("cuda", torch.cuda.current_device()))
    except RuntimeError as error:
        return absent(f"torch cannot allocate it: {str(error).splitlines()[0]}", "passes use messages instead")
    return works(f"torch can allocate it; {UNDER_TORCHRUN}")


def shared_memory() -> Answer:
    """Whether the kernels can be built and a file in memory made; only a group can tell whether ranks share it."""
    if platform.system() != "Linux":
        return absent("it works on Linux only; collectives go through the process group instead")
    from counterpoint.errors import SharedMemoryError
    from counterpoint.runtime.shared_memory.library import kernels
    from counterpoint.runtime.shared_memory.segment import Segment

    try:
        size = kernels().cp_segment_bytes(1, 1 << 20)
        Segment.create(1, size).close()
    except SharedMemoryError as error:
        return absent(error.what, error.next_step or "collectives go through the process group instead")
    return works(f"kernels are built, memory can be made; {UNDER_TORCHRUN}")


def _gpu_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
