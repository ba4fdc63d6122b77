"""What is installed: torch and what it supports, ourselves, compilers, and the options in force."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Mapping
from types import MappingProxyType

from counterpoint.cli.doctor.finding import Answer, Probe, absent, broken, works

OLDEST_PYTHON = (3, 10)

OPERATORS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "functional collectives": ("_c10d_functional", "all_reduce"),
        "coalesced collectives": ("_c10d_functional", "all_reduce_coalesced"),
        "one wait for several results": ("_c10d_functional", "wait_tensors"),
        "fused gather and matmul": ("symm_mem", "fused_all_gather_matmul"),
        "fused matmul and scatter": ("symm_mem", "fused_matmul_reduce_scatter"),
        "fused scaled matmul and scatter": ("symm_mem", "fused_scaled_matmul_reduce_scatter"),
        "one-shot all-reduce": ("symm_mem", "one_shot_all_reduce"),
        "multicast all-reduce": ("symm_mem", "multimem_all_reduce_"),
    }
)
"""What torch may support, by an operator that is there when it does."""


def software_probes() -> tuple[Probe, ...]:
    """All of them."""
    return (
        Probe("software", "python", python),
        Probe("software", "torch", torch_itself),
        Probe("software", "torch supports", torch_supports),
        Probe("software", "counterpoint", ourselves),
        Probe("software", "backend", entry_point),
        Probe("software", "options", options),
        Probe("software", "plots", plots),
        Probe("code generation", "C++ for the CPU", cpp),
        Probe("code generation", "Triton for GPUs", triton),
    )


def python() -> Answer:
    """Which Python runs this."""
    said = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        return broken(said, "use Python 3.10 or newer")
    if platform.system() == "Windows":
        return broken(said, "use Linux; Windows is not supported")
    return works(said)


def torch_itself() -> Answer:
    """Whether torch is new enough, and what it was built for."""
    import torch

    from counterpoint._torch import OLDEST_TORCH, torch_version

    built = (
        f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}" if torch.version.hip else ""
    )
    said = f"{torch.__version__}, built for {built or 'the CPU'}"
    oldest = ".".join(map(str, OLDEST_TORCH))
    if torch_version() < OLDEST_TORCH:
        return broken(f"{said}, older than {oldest}", f"install torch {oldest} or newer")
    return works(f"{said}; {oldest} and newer are supported")


def torch_supports() -> Answer:
    """Which of the operators that passes can use this torch has."""
    import torch.distributed

    if not torch.distributed.is_available():
        return broken(
            "this torch was built without torch.distributed", "install a build with it, such as those of PyPI"
        )
    from counterpoint._torch import find_operator, register_symmetric_operators

    register_symmetric_operators()
    missing = [name for name, (space, op) in OPERATORS.items() if find_operator(space, op, "default") is None]
    has = ", ".join(name for name in OPERATORS if name not in missing)
    if missing:
        return works(f"{has}. Not {', '.join(missing)}, which other versions of torch have; passes do without")
    return works(has)


def ourselves() -> Answer:
    """Which version of this package, and from where."""
    import counterpoint
    from counterpoint.inductor.fingerprint import package_version, source_hash

    return works(f"{package_version()}, code {source_hash()[:12]}, in {next(iter(counterpoint.__path__))}")


def entry_point() -> Answer:
    """Whether `torch.compile(backend="counterpoint")` finds us."""
    found = importlib.metadata.entry_points(group="torch_dynamo_backends", name="counterpoint")
    if found:
        return works('torch.compile(..., backend="counterpoint") finds it')
    return broken(
        "torch does not find the backend by its name: the package is not installed, only on the path",
        "pip install . in the checkout, or pip install counterpoint-compiler",
    )


def options() -> Answer:
    """The options that differ from their defaults, and what looks like one and is none."""
    import os

    from counterpoint.options import effective, unknown_variables

    chosen = [str(setting) for setting in effective().settings if setting.source != "default"]
    unknown = unknown_variables(os.environ)
    if unknown:
        return broken(
            f"no options are {', '.join(unknown)}, so they are ignored",
            "unset them, or correct the name; counterpoint explain --help lists options",
        )
    return works("; ".join(chosen) or "all at their defaults")


def plots() -> Answer:
    """Whether `plan --plot` can draw."""
    if importlib.util.find_spec("matplotlib") is None:
        return absent("matplotlib is not installed", "for plan --plot: pip install 'counterpoint-compiler[plot]'")
    return works(f"matplotlib {importlib.metadata.version('matplotlib')}")


def cpp() -> Answer:
    """Whether inductor can compile C++ here."""
    from counterpoint.inductor.plan import cpp_compiler, missing_for_cpp

    missing = missing_for_cpp()
    if missing is not None:
        return absent(
            f"{missing.what} ({missing.where}), so CPU graphs run without generated code, as with codegen=eager",
            missing.remedy,
        )
    return works(f"{cpp_compiler()}, with Python's headers")


def triton() -> Answer:
    """Whether inductor can compile for GPUs here."""
    import torch

    if not torch.cuda.is_available():
        return absent("there is no GPU to generate code for")
    if importlib.util.find_spec("triton") is None:
        return broken("Triton is not installed, and inductor needs it for GPUs", "pip install triton")
    return works(f"Triton {importlib.metadata.version('triton')}")
