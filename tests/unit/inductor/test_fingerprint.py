"""The fingerprint: any change of code, version or options changes it; where code cannot be known, there is none."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import counterpoint
from counterpoint.inductor import fingerprint as module
from counterpoint.inductor.fingerprint import fingerprint, foreign_sources_hash


def test_equal_parts_give_equal_fingerprints_and_different_ones_do_not() -> None:
    assert fingerprint("a", "b") == fingerprint("a", "b")
    assert len({fingerprint("a", "b"), fingerprint("ab"), fingerprint("a", "c"), fingerprint("b", "a")}) == 4


def test_a_new_version_of_the_package_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint()
    monkeypatch.setattr(module, "package_version", lambda: "999.0")
    assert fingerprint() != before


def test_another_torch_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint()
    monkeypatch.setattr("torch.__version__", "9.9.9")
    assert fingerprint() != before


@pytest.fixture
def copied_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "counterpoint"
    shutil.copytree(Path(counterpoint.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(counterpoint, "__file__", str(root / "__init__.py"))
    return root


def hash_now() -> str:
    return module.source_hash.__wrapped__()


def test_a_changed_source_file_changes_it(copied_package: Path) -> None:
    before = hash_now()
    assert before == hash_now()
    changed = copied_package / "ir" / "ops.py"
    changed.write_text(changed.read_text() + "# a word more\n")
    assert hash_now() != before


def test_a_new_source_file_changes_it_and_a_renamed_one_too(copied_package: Path) -> None:
    first = hash_now()
    added = copied_package / "passes" / "new_pass.py"
    added.write_text("x = 1\n")
    second = hash_now()
    added.rename(copied_package / "passes" / "other_pass.py")
    assert len({first, second, hash_now()}) == 3


def test_files_that_compiled_code_does_not_depend_on_leave_it_alone(copied_package: Path) -> None:
    before = hash_now()
    (copied_package / "cli" / "new_command.py").write_text("x = 1\n")
    assert hash_now() == before


def test_a_pass_from_elsewhere_counts_by_its_source_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "foreign_pass_for_test.py"
    file.write_text("class Foreign: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    foreign = __import__("foreign_pass_for_test").Foreign
    before = foreign_sources_hash([foreign])
    file.write_text("class Foreign: other = 1\n")
    assert before is not None
    assert foreign_sources_hash([foreign]) not in (before, None)
    del sys.modules["foreign_pass_for_test"]


def test_a_pass_without_a_source_file_has_no_safe_fingerprint() -> None:
    namespace: dict[str, type] = {}
    exec("class Typed: pass", {"__name__": "typed_by_hand"}, namespace)
    assert foreign_sources_hash([namespace["Typed"]]) is None


def test_our_own_classes_are_covered_by_the_package() -> None:
    assert foreign_sources_hash([counterpoint.inductor.fences.Fence]) == foreign_sources_hash([])
