"""What one `torch.compile` call amounts to: everything decided before a graph is looked at."""

from __future__ import annotations

import logging
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._inductor import config as inductor_config
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler

from counterpoint.cost.model import CostModel
from counterpoint.errors import CompileError
from counterpoint.inductor.fences import fence_patches, torch_passes_on
from counterpoint.inductor.fingerprint import fingerprint, foreign_sources_hash
from counterpoint.inductor.request import Request
from counterpoint.options import CompileOptions
from counterpoint.passes.contract import provided_by
from counterpoint.passes.pipeline import Pipeline
from counterpoint.runtime import (  # noqa: F401  registers operators that passes emit
    hierarchical,
    shared_memory,
    symmetric_collectives,
)
from counterpoint.runtime.measure import LINKS
from counterpoint.runtime.pipelined import operators  # noqa: F401  what passes emit can be run

LOGGER = logging.getLogger("counterpoint.compile")


@dataclass(frozen=True)
class Plan:
    """A request, decided."""

    request: Request
    pipeline: Pipeline
    codegen: str
    """`inductor` or `eager`, what is really used."""
    patches: Mapping[str, Any]
    """Settings of inductor for our compiles: the user's and our fences."""
    identity: str | None
    """Identifies our part of the compile in a cache key; None where a pass has no source file to identify it by."""
    in_force: Mapping[str, str]
    """For the records."""
    cost_model: CostModel
    """What things take, with the links that were measured before this compile; the same on all ranks."""
    notes: tuple[str, ...] = ()
    """Where what is in force is not what was asked for."""

    @property
    def options(self) -> CompileOptions:
        """Our options in force."""
        return self.request.options


def make_plan(request: Request, example_inputs: Sequence[Any]) -> Plan:
    """Decide code generator, pipeline, fences and cache identity."""
    pipeline = Pipeline.of(request.options)
    # Checked here, so that a pipeline that cannot work is refused before anything is traced or compiled.
    pipeline.check()
    codegen, notes = _choose_codegen(request, example_inputs)
    provided = frozenset().union(*(provided_by(item) for item in pipeline.passes))
    fences = fence_patches(provided, request.torch_settings) if codegen == "inductor" else {}
    patches = {**request.torch_settings, **fences}
    if codegen == "eager" and request.torch_settings:
        ignored = ", ".join(sorted(request.torch_settings))
        notes += (f"codegen=eager generates no code, so these inductor settings do nothing: {ignored}",)
    for note in notes:
        LOGGER.warning("%s", note)
    links = LINKS.table
    cost_model = CostModel.of(request.options, links, fuses=codegen == "inductor")
    foreign = foreign_sources_hash({type(item) for item in pipeline.passes})
    identity = (
        None
        if foreign is None
        else fingerprint(
            request.options.text(), pipeline.text, foreign, cost_model.text, *(item.given() for item in pipeline.passes)
        )
    )
    in_force = {
        "codegen": codegen,
        "passes": pipeline.text,
        "options": "; ".join(str(setting) for setting in request.effective.settings),
        "links": links.text,
        "topology": cost_model.topology.text if cost_model.topology is not None else "",
        "fences": ", ".join(f"{key}={value!r}" for key, value in fences.items()),
        "inductor settings": ", ".join(f"{k}={v!r}" for k, v in request.torch_settings.items()),
        "torch passes on": ", ".join(torch_passes_on(patches)) if codegen == "inductor" else "",
    }
    in_force = {name: value for name, value in in_force.items() if value}
    return Plan(
        request=request,
        pipeline=pipeline,
        codegen=codegen,
        patches=patches,
        identity=identity,
        in_force=in_force,
        cost_model=cost_model,
        notes=notes,
    )


def _choose_codegen(request: Request, example_inputs: Sequence[Any]) -> tuple[str, tuple[str, ...]]:
    """The code generator; where inductor is only the default and cannot work here, the eager one, with a note."""
    wanted = request.options.codegen
    missing = missing_for_cpp() if wanted == "inductor" and _needs_cpp(example_inputs) else None
    if missing is None:
        return wanted, ()
    if request.chose("codegen"):
        raise CompileError(
            f"codegen='inductor' compiles C++ for CPU tensors, and {missing.what}",
            where=missing.where,
            next_step=f"{missing.remedy}, or use codegen='eager'",
        )
    return "eager", (
        f"{missing.what} ({missing.where}), so the graph runs without code generation, as with codegen='eager'; "
        f"for generated code {missing.remedy}",
    )


def _needs_cpp(example_inputs: Sequence[Any]) -> bool:
    devices = {value.device.type for value in example_inputs if isinstance(value, torch.Tensor)}
    return "cpu" in devices or not devices


class _Missing(NamedTuple):
    what: str
    where: str
    remedy: str


def cpp_compiler() -> str:
    """The C++ compiler that inductor takes; an error of torch's where there is none."""
    return str(get_cpp_compiler())


def missing_for_cpp() -> _Missing | None:
    """What inductor lacks on this machine to compile C++: a compiler, or the headers of this Python."""
    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError, OSError):
        configured = inductor_config.cpp.cxx
        tried = configured if isinstance(configured, (list, tuple)) else (configured,)
        names = ", ".join(str(one) for one in tried if one)
        return _Missing(
            "no C++ compiler was found",
            f"tried {names}",
            "install g++ or clang++, or name one in the environment variable CXX",
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        return _Missing(
            "the headers of Python are not installed",
            f"no {header}",
            "install them (python3-dev on Debian)",
        )
    return None
