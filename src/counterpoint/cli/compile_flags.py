"""Command-line flags made from the options themselves, so that neither names nor help are written twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from counterpoint.options import CompileOptions, OptionInfo, described

F = TypeVar("F", bound=Callable[..., Any])


def compile_flags(*names: str) -> Callable[[F], F]:
    """Add a flag for each of these options. A flag that is not given has the value None."""

    def decorate(function: F) -> F:
        infos = described(CompileOptions)
        for name in reversed(names):
            function = _flag(infos[name])(function)
        return function

    return decorate


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """Those of the flags that were given."""
    return {name: value for name, value in flags.items() if value is not None}


def _flag(info: OptionInfo) -> Callable[[F], F]:
    text = f"{info.help[:1].upper()}{info.help[1:]}."
    default = "none" if info.default is None else str(info.default).lower()
    help = f"{text}  [default: {default}; environment: COUNTERPOINT_{info.name.upper()}]"
    if info.scalar is bool:
        return click.option(f"--{info.kebab}/--no-{info.kebab}", info.name, default=None, help=help)
    kind = click.Choice([str(choice) for choice in info.choices]) if info.choices else info.scalar
    return click.option(f"--{info.kebab}", info.name, type=kind, default=None, help=help)
