"""Does each node's metadata agree with what its operator computes? Runs every operator on fake tensors.

Guards are suppressed meanwhile, so that checking a graph never specialises its symbols.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.fx import Graph, Node

from counterpoint._torch import FakeTensorMode, OpOverload
from counterpoint.errors import GraphError
from counterpoint.ir import effects, fake, metadata
from counterpoint.ir.effects import Effect
from counterpoint.ir.verify.finding import Finding, at
from counterpoint.ir.verify.sizes import exact, hint

_SKIPPED = (Effect.BARRIER, Effect.MUTATES)
"""Writes could change the metadata of the operands themselves; barriers may do anything."""


def check_metadata(graph: Graph, groups: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare shape, dtype, device and strides."""
    try:
        mode = fake.fake_mode_of(graph)
    except GraphError:
        return
    known: dict[Hashable, str | None] = {}
    with _without_guards(mode):
        for node in graph.nodes:
            if not _can_run(node):
                continue
            key = _key(node)
            if key is None or key not in known:
                known[key] = _problem(node, mode, groups)
            problem = known[key]
            if problem is not None:
                yield at("cannot-compute" if problem.startswith("raises") else "wrong-metadata", node, problem)


def _without_guards(mode: FakeTensorMode) -> AbstractContextManager[Any]:
    return mode.shape_env.suppress_guards() if mode.shape_env is not None else nullcontext()


def _can_run(node: Node) -> bool:
    if node.op != "call_function" or "unbacked_bindings" in node.meta or not metadata.has_value(node):
        return False
    if not isinstance(node.target, OpOverload) or effects.effect_of(node) in _SKIPPED:
        return node.target is operator.getitem
    return all(metadata.has_value(operand) for operand in node.all_input_nodes)


def _key(node: Node) -> Hashable | None:
    """Calls with equal keys compute equal metadata; None where that cannot be told cheaply."""
    if node.target is operator.getitem:
        # Quick to run, while the key would describe the whole list once for every element.
        return None
    try:
        parts = [node.target, _form(node.meta["val"]), *map(_argument, node.args)]
        parts += [(name, _argument(value)) for name, value in node.kwargs.items()]
        key = tuple(parts)
        hash(key)
    except TypeError:
        return None
    return key


def _argument(value: Any) -> Hashable:
    if isinstance(value, Node):
        return ("node", _form(value.meta["val"]))
    if isinstance(value, (list, tuple)):
        return tuple(map(_argument, value))
    return type(value).__name__, value


def _form(value: Any) -> Hashable:
    """All that a fake kernel can see of a value. TypeError where a symbol is involved."""
    if isinstance(value, torch.Tensor):
        form = (*value.shape, *value.stride(), value.storage_offset())
        if not all(isinstance(number, int) for number in form):
            raise TypeError
        return (value.dim(), form, value.dtype, value.device, value.is_conj(), value.is_neg(), value.requires_grad)
    if isinstance(value, (list, tuple)):
        return tuple(map(_form, value))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise TypeError
    return type(value).__name__


def _problem(node: Node, mode: FakeTensorMode, groups: Mapping[str, Any]) -> str | None:
    try:
        computed = _element(node) if node.target is operator.getitem else fake.run_fake(node, mode, groups)
    except (TypeError, ValueError, IndexError, AssertionError, GraphError) as error:
        return f"raises {type(error).__name__}: {error}"
    except RuntimeError as error:
        # Questions about the data, and fake kernels that are missing, say nothing about this graph.
        return None if type(error) is not RuntimeError else f"raises RuntimeError: {error}"
    except Exception:
        return None
    return _difference(node.meta["val"], computed)


def _element(node: Node) -> Any:
    source, index = node.args
    return metadata.value_of(source)[index] if isinstance(source, Node) else source


def _difference(said: Any, computed: Any) -> str | None:
    """The first thing in which two fake values differ for certain."""
    if isinstance(said, (list, tuple)) and isinstance(computed, (list, tuple)):
        if len(said) != len(computed):
            return f"{len(said)} values are noted and {len(computed)} computed"
        return next((p for a, b in zip(said, computed, strict=True) if (p := _difference(a, b))), None)
    if not isinstance(said, torch.Tensor) or not isinstance(computed, torch.Tensor):
        mismatch = isinstance(said, torch.Tensor) != isinstance(computed, torch.Tensor)
        return f"{type(said).__name__} is noted and {type(computed).__name__} computed" if mismatch else None
    for name in ("dtype", "device", "layout"):
        if getattr(said, name) != getattr(computed, name):
            return f"{name} {getattr(said, name)} is noted and {getattr(computed, name)} computed"
    if said.dim() != computed.dim() or not all(map(_may_equal, said.shape, computed.shape)):
        return f"shape {list(said.shape)} is noted and {list(computed.shape)} computed"
    if said.layout is torch.strided and not _strides_agree(said, computed):
        return f"strides {list(said.stride())} are noted and {list(computed.stride())} computed"
    return None


def _strides_agree(said: torch.Tensor, computed: torch.Tensor) -> bool:
    """Whether the strides may be equal; those of dimensions without a second element mean nothing."""
    sizes = list(map(hint, computed.shape))
    if None in sizes or 0 in sizes:
        return True
    triples = zip(sizes, said.stride(), computed.stride(), strict=True)
    return all(size == 1 or _may_equal(a, b) for size, a, b in triples)


def _may_equal(a: Any, b: Any) -> bool:
    if exact(a) == exact(b):
        return True
    left, right = hint(a), hint(b)
    if isinstance(a, int) and isinstance(b, int):
        return False
    return left is None or right is None or left == right
