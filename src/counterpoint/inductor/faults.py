"""Keeping the graph on which a pass of ours failed, so that the fault can be repeated elsewhere."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import get_args

import torch.distributed as dist
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.fx import Graph, GraphModule

from counterpoint.capture.file import graphs_text
from counterpoint.capture.graph import CapturedGraph, Role
from counterpoint.ir.groups import GroupTable
from counterpoint.passes.report import PipelineReport

LOGGER = logging.getLogger("counterpoint.faults")
_ROLES: tuple[Role, ...] = get_args(Role)


def save_fault(gm: GraphModule, graph: Graph, groups: GroupTable, report: PipelineReport) -> str:
    """Write the graph as the passes were given it to a file, log where it lies, and say so in one sentence."""
    text, suffix = _text_of(gm, graph, groups, report.graph)
    content = text.encode("utf-8", "surrogatepass")
    name = hashlib.sha256(content).hexdigest()[:16]
    path = Path(cache_dir()) / "counterpoint" / "faults" / f"{name}{suffix}"
    problems = "\n".join(report.problems)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        LOGGER.error("our passes had a fault: %s\nThe graph could not be saved: %s", problems, error)
        return f"the graph could not be saved to {path}"
    LOGGER.error(
        "our passes had a fault: %s\nRepeat it with: counterpoint opt %s --passes '%s' (and please report it)",
        problems,
        path,
        report.pipeline,
    )
    return f"the graph as the passes were given it is in {path}"


def _text_of(gm: GraphModule, graph: Graph, groups: GroupTable, name: str) -> tuple[str, str]:
    role: Role = "step"
    for known in _ROLES:
        role = known if name.startswith(known) else role
    try:
        captured = CapturedGraph(
            gm=GraphModule(gm, graph),
            name=name,
            role=role,
            world_size=dist.get_world_size() if dist.is_initialized() else max(1, groups.world_size),
            rank=dist.get_rank() if dist.is_initialized() else 0,
            groups=dict(groups),
            stage="post_grad",
        )
        return graphs_text([captured]), ".graph"
    except Exception:
        # A graph that no file format holds may be the very reason of the fault.
        LOGGER.debug("the graph has no file form", exc_info=True)
        return str(graph), ".txt"
