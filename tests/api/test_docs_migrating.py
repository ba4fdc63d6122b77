"""The tables of the page on migrating name settings, passes and functions that exist."""

from __future__ import annotations

import importlib
import re

import pytest
import torch

from tests.api.test_docs_code import ROOT

PAGE = (ROOT / "docs/migrating.md").read_text()
PLACES = ("fx_passes.ddp_fusion", "fx_passes.bucketing", "fx_passes.micro_pipeline_tp", "comm_lowering")


def rows(heading: str) -> list[tuple[str, str]]:
    """The two columns of the first table below a heading."""
    text = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.*) \| (.*) \|$", text, re.MULTILINE)
    assert len(found) > 3
    return found[1:]


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the page names the settings of torch 2.13")
def test_settings_of_inductor_are_those_of_torch() -> None:
    from counterpoint.inductor.fences import has_setting

    names: list[str] = []
    for cell, _ in rows("From inductor's flags"):
        prefix = ""
        for code in codes(cell):
            name = code.removeprefix("_inductor.config.").split(" = ")[0]
            if not re.fullmatch(r"[._a-z]+", name) or "..." in name:
                continue
            name = prefix + name if name.startswith(".") else name
            prefix = name.rpartition(".")[0]
            names.append(name)
    assert len(names) > 15
    assert [name for name in names if not has_setting(name)] == []


def test_passes_and_options_are_ours() -> None:
    from counterpoint.options import CompileOptions, described
    from counterpoint.passes.pipeline import Pipeline
    from counterpoint.passes.registry import REGISTRY

    cells = [code for _, cell in rows("From inductor's flags") for code in codes(cell)]
    named = [code for code in cells if code.split("{")[0] in REGISTRY.names()]
    assert len({code.split("{")[0] for code in named}) >= 7
    for code in named:
        Pipeline.parse(code.replace("...", "25"))
    assert {"topology", "cost_table"} <= {*described(CompileOptions)} & {*cells}


def test_the_doors_have_the_functions() -> None:
    found = 0
    for there, here in rows("From private imports"):
        place, *functions = codes(there)
        assert codes(here) == [place]
        for name in functions:
            assert hasattr(importlib.import_module(f"counterpoint.inductor.{place}"), name), f"{place}.{name}"
            assert hasattr(importlib.import_module(f"torch._inductor.{place}"), name), f"torch: {place}.{name}"
            found += 1
    assert {codes(there)[0] for there, _ in rows("From private imports")} == set(PLACES)
    assert found > 12
