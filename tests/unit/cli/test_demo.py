"""The demo trains, keeps the loss, and accounts for every collective, on real gloo processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from counterpoint.capture.file import load_graph
from counterpoint.cli import main
from counterpoint.ir.build import collectives_in


@pytest.mark.slow
def test_the_demo_without_code_generation(tmp_path: Path) -> None:
    arguments = ["demo", "--codegen", "eager", "--way", "replicate", "--steps", "2", "--output", str(tmp_path)]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "step 2 of 2, loss" in result.stderr
    assert "replicate, code generation: eager" in result.stdout
    assert "backward/all_reduce#20" in result.stdout
    assert "our passes: a step of " in result.stdout
    assert re.search(r"\nbucketed +(20|21) ", result.stdout)
    assert "example_models.py:" in result.stdout
    captured = load_graph(tmp_path / "replicate.graph")
    assert (captured.role, captured.world_size) == ("step", 2)
    assert len(collectives_in(captured.gm.graph)) >= 21
