"""While a model's forward is traced, nodes learn which of its modules made them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from counterpoint import _torch

OURS = ("parametrizations", "_counterpoint")
"""Modules that wrappers keep inside a user's: what they do counts for the user's module."""


@contextmanager
def noting_modules(model: nn.Module) -> Iterator[None]:
    """Let the nodes that are traced carry the path of the module whose forward, or hooks of it, made them."""
    path: list[tuple[str, str]] = []

    def entered(name: str, kind: str) -> Any:
        def hook(*_: Any) -> None:
            path.append((name, kind))
            _torch.note_module(path)

        return hook

    def left(*_: Any) -> None:
        if path:
            path.pop()
        _torch.note_module(path)

    handles = []
    for name, module in model.named_modules():
        if not name or any(part in OURS for part in name.split(".")):
            continue
        # Around all other hooks: what they communicate is done for this module.
        handles.append(module.register_forward_pre_hook(entered(name, type(module).__qualname__), prepend=True))
        handles.append(module.register_forward_hook(left, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        _torch.note_module([])
