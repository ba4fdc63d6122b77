"""Every golden case gives what its file says. See `golden.py` for how a file is written and recorded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.golden.golden import Case, CaseError, cases
from tests.support.passes import REGISTRY
from tests.support.toolchain import NEEDS

FOLDER = Path(__file__).parent / "cases"
RECORDING = "COUNTERPOINT_RECORD" in os.environ


@pytest.mark.parametrize("path", cases(FOLDER), ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))
def test_case(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    case = Case.parse(written)
    missing = NEEDS[case.needs]() if case.needs else None
    if missing is not None:
        pytest.skip(missing)
    found = case.run(REGISTRY)
    if RECORDING:
        path.write_text(found, encoding="utf-8")
    else:
        assert found == written


CASE = """# {claim}
passes: {passes}
group "0": 0..1
expect: {expect}

== before ==
graph
  %x: f32[4] = placeholder
  %y: f32[4] = placeholder
  %a: f32[4] = _c10d_functional.all_reduce(%x, "sum", "0")
  %u: f32[4] = _c10d_functional.wait_tensor(%a)
  %b: f32[4] = _c10d_functional.all_reduce(%y, "{op}", "0")
  %v: f32[4] = _c10d_functional.wait_tensor(%b)
  return (%u, %v)
"""


def run(passes: str, expect: str, op: str = "sum") -> str:
    return Case.parse(CASE.format(claim="A claim.", passes=passes, expect=expect, op=op)).run(REGISTRY)


def test_zero_matches_where_one_is_expected_fails() -> None:
    with pytest.raises(CaseError, match="changed nothing"):
        run("merge-all-reduces", "fires", op="max")


def test_a_match_where_none_is_expected_fails() -> None:
    with pytest.raises(CaseError, match="11 edits: forward/all_reduce#0, forward/all_reduce#1"):
        run("merge-all-reduces", "refuses")


def test_a_failing_pass_fails_the_case() -> None:
    with pytest.raises(CaseError, match="reduce-op-changed"):
        run("change-reduce-op", "fires")


def test_what_was_recorded_reads_back_as_the_same_case() -> None:
    recorded = run("merge-all-reduces", "fires")
    assert Case.parse(recorded).run(REGISTRY) == recorded


@pytest.mark.parametrize(
    "text",
    ["", "# c\nexpect: maybe\n== before ==\ngraph\n", "# c\nexpect: fires\n", "# c\nexpcet: fires\n== before ==\ng\n"],
)
def test_a_file_that_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(CaseError):
        Case.parse(text)
