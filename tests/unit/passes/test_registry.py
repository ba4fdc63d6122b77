"""Passes are found by name; every one of them documents itself."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest

from counterpoint.errors import PassError
from counterpoint.options import described
from counterpoint.passes import registry
from counterpoint.passes.base import HEADINGS, Pass, PassContext
from counterpoint.passes.registry import BUILT_IN, REGISTRY, Registry


@dataclass(frozen=True, kw_only=True)
class DoNothing(Pass):
    """Does nothing."""

    name: ClassVar[str] = "do-nothing"

    def run(self, context: PassContext) -> None:
        """Nothing."""


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_pass_documents_itself_and_starts_from_defaults(name: str) -> None:
    cls = REGISTRY.find(name)
    text = inspect.getdoc(cls) or ""
    positions = [text.find(f"\n{heading}:") for heading in HEADINGS]
    assert -1 not in positions
    assert positions == sorted(positions)
    assert all(info.help for info in described(cls).values())
    assert cls().text == name


@pytest.mark.parametrize(("name", "place"), BUILT_IN.items())
def test_classes_are_called_after_their_pass(name: str, place: str) -> None:
    assert place.partition(":")[2] == "".join(map(str.capitalize, name.split("-")))


def test_an_unknown_name_is_refused_with_near_ones() -> None:
    with pytest.raises(PassError, match="did you mean 'verify-graph'"):
        REGISTRY.find("verify-grap")
    with pytest.raises(PassError, match="the passes are print-graph, verify-graph"):
        Registry({name: BUILT_IN[name] for name in ("print-graph", "verify-graph")}).find("zzz")


def test_own_passes_can_be_registered_once() -> None:
    own = Registry()
    assert own.register(DoNothing) is DoNothing
    own.register(DoNothing)
    assert own.find("do-nothing") is DoNothing
    assert "do-nothing" in own.names()

    @dataclass(frozen=True, kw_only=True)
    class Other(DoNothing):
        name: ClassVar[str] = "do-nothing"

    with pytest.raises(PassError, match="taken by another pass"):
        own.register(Other)


def test_built_in_names_cannot_be_taken() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(DoNothing):
        name: ClassVar[str] = "verify-graph"

    with pytest.raises(PassError, match="taken"):
        Registry().register(Mine)


def test_entry_points_offer_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("do-nothing", f"{__name__}:DoNothing", registry.ENTRY_POINTS),
        EntryPoint("do-harm", "no_such_module:Pass", registry.ENTRY_POINTS),
        EntryPoint("no-pass", f"{__name__}:pytest", registry.ENTRY_POINTS),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == registry.ENTRY_POINTS else [])
    own = Registry()
    assert own.find("do-nothing") is DoNothing
    with pytest.raises(PassError, match="cannot be loaded"):
        own.find("do-harm")
    with pytest.raises(PassError, match="is not a pass of the name 'no-pass'"):
        own.find("no-pass")
    assert [cls.name for cls in own] == sorted(["do-nothing", *BUILT_IN])
