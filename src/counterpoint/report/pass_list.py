"""The passes that exist, with what they do, their contracts and their options."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from counterpoint.options import OptionInfo, described
from counterpoint.options.text import value_text
from counterpoint.passes.base import Pass
from counterpoint.passes.registry import REGISTRY


def pass_list_view(plain: bool = False) -> RenderableType:
    """Every registered pass."""
    return Group(*(line for cls in REGISTRY for line in _lines(cls, plain)))


def _lines(cls: type[Pass], plain: bool) -> Iterator[RenderableType]:
    yield Text(cls.name, style="" if plain else "bold")
    yield Padding(Text(cls.summary()), (0, 0, 0, 2))
    for label in ("provides", "requires", "conflicts_with"):
        facts = getattr(cls.contract, label)
        if facts:
            yield Padding(Text(f"{label.replace('_', ' ')}: {', '.join(sorted(facts))}"), (0, 0, 0, 2))
    for info in described(cls).values():
        yield Padding(Text(_option(info)), (0, 0, 0, 4))


def _option(info: OptionInfo) -> str:
    return f"{info.kebab}={value_text(info, info.default)}: {info.help} ({info.expects})"
