"""Levels of logging from the environment, and what each part tells."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from counterpoint.ir.build import GraphBuilder
from counterpoint.logs import PARTS, read_levels
from counterpoint.passes.pipeline import Pipeline, run_pipeline


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("passes", {"counterpoint.passes": logging.INFO}),
        (
            "+passes, -cache,agreement",
            {
                "counterpoint.passes": logging.DEBUG,
                "counterpoint.cache": logging.ERROR,
                "counterpoint.agreement": logging.INFO,
            },
        ),
        ("+all", {"counterpoint": logging.DEBUG}),
        ("", {}),
    ],
)
def test_signs_are_levels_as_in_torch(text: str, levels: dict[str, int]) -> None:
    assert read_levels(text) == (levels, [])


def test_what_nothing_is_called_is_said_with_the_near_name() -> None:
    levels, complaints = read_levels("pases,+nonsense_at_all")
    assert levels == {}
    assert complaints[0] == "COUNTERPOINT_LOGS: nothing is called 'pases'; did you mean 'passes'?"
    assert all(part in complaints[1] for part in PARTS)


def test_each_pass_says_how_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    builder = GraphBuilder()
    gm = builder.finish(builder.all_reduce(builder.input("x", (4,))))
    with caplog.at_level(logging.INFO, logger="counterpoint.passes"):
        run_pipeline(gm, Pipeline.parse("verify-graph"), name="forward")
    assert caplog.messages[0].startswith("forward: verify-graph done in ")
    assert caplog.messages[0].endswith("collectives 1 to 1")


def test_the_variable_is_read_when_the_package_is_loaded_and_tells_the_rank() -> None:
    code = "import logging, counterpoint; logging.getLogger('counterpoint.cache').debug('hello')"
    environment = {**os.environ, "COUNTERPOINT_LOGS": "+cache,typo", "RANK": "3"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    first, second = done.stderr.splitlines()
    assert first.startswith("[rank3] WARNING counterpoint: COUNTERPOINT_LOGS: nothing is called 'typo'")
    assert second == "[rank3] DEBUG counterpoint.cache: hello"
