"""Where a node comes from: file, line and module in the user's own code, and the collectives whose work it does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node

import counterpoint

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")
_MACHINERY = ("/site-packages/torch/", "/dist-packages/torch/", "/site-packages/counterpoint/")
_OUR_FOLDERS = tuple(str(Path(str(package.__file__)).parent) + "/" for package in (torch, counterpoint))
_INDEX = re.compile(r"(?:\._modules)?\['?([^'\]]*)'?\]")
_EXAMPLES = ("/counterpoint/capture/example_models.py",)
"""Of our own files, those that stand in for a user's."""
# Where `replicate` keeps modules for itself, and where the compiler may have found one first.
_KEPT = re.compile(r"^_counterpoint\.unit\.buffers\.\d+\.0\.?")
_SELF = re.compile(r"^(?:L\.)?(?:L__self__|self)(?:[._]|$)")

ORIGIN = "counterpoint_origin"
"""Key of a node's metadata under which the origins that it carries stand."""


def origins_of(node: Node) -> tuple[str, ...]:
    """The collectives of the input graph that a node does the work of."""
    return tuple(node.meta.get(ORIGIN, ()))


def source_of(node: Node) -> str:
    """`file:line in function`: the innermost frame of the user's code, or of a library when the user's is not there.

    A collective that a wrapper inserted has often no trace of its own; then that of its nearest neighbours stands in.
    """
    for candidate in _candidates(node):
        trace = candidate.meta.get("stack_trace")
        if isinstance(trace, str) and (found := _innermost(trace)):
            return found
    return ""


def _innermost(trace: str) -> str:
    frames = [match for match in _FRAME.finditer(trace) if not is_machinery(match["file"])]
    own = [frame for frame in frames if not any(part in frame["file"] for part in _LIBRARIES)]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    return f"{frame['file']}:{frame['line']} in {frame['function'].strip()}"


def is_machinery(file: str) -> bool:
    """Whether a file is torch's or ours, and so no place that a user would look at."""
    if file.endswith(_EXAMPLES):
        return False
    return file.startswith(("<", *_OUR_FOLDERS)) or any(part in file for part in _MACHINERY)


def module_of(node: Node) -> str:
    """Path of the user's module, `layers.0.mlp`; empty when the node tells none."""
    for candidate in _candidates(node):
        for key in ("nn_module_stack", "fwd_nn_module_stack"):
            path = _last_path(candidate.meta.get(key))
            if path:
                return path
    return ""


def _last_path(stack: Any) -> str:
    if not isinstance(stack, Mapping) or not stack:
        return ""
    last = list(stack.values())[-1]
    written = str(last[0] if isinstance(last, (tuple, list)) and last else last)
    # L['self'].layers[0], L['self']._modules['layers'] and L__self___layers all mean a path from the root.
    return _KEPT.sub("", _SELF.sub("", _INDEX.sub(r".\1", written)).strip("."))


def _candidates(node: Node) -> Iterator[Node]:
    yield node
    yield from node.users
    yield from node.all_input_nodes
