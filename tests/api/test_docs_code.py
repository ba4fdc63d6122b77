"""The documentation is right: its Python runs, its links lead somewhere, its generated pages are complete.

A Python block runs in a process of its own, on two ranks when it makes a process group. A comment
`<!-- not run: why -->` on the line before keeps a block from being run. For commands see `test_docs_commands.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.scripts import Done, run_script

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"(<!-- not run: (?P<why>[^>]+) -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#]+)")
TIME_LIMIT_S = 240
# What a process says when a thread of torch outlives its interpreter, rarely and after all is done (pytorch 190489).
# That is not what a page claims, so its block gets a second try.
AT_EXIT = "terminate called without an active exception"


class Block(NamedTuple):
    """One Python block of a page."""

    page: str
    line: int
    code: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(text: str, page: str) -> list[Block]:
    """The Python blocks of a page's text."""
    return [
        Block(page, text[: found.start("code")].count("\n"), found["code"], found["why"])
        for found in BLOCK.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page.read_text(), str(page.relative_to(ROOT)))]


def run_block(block: Block, folder: Path) -> Done:
    """The block as a script: under torchrun on the front page, which says so; elsewhere as torchrun would."""
    script = folder / "block.py"
    script.write_text(block.code)
    distributed = "init_process_group" in block.code

    def run() -> Done:
        if distributed and block.page == "README.md":
            return _torchrun(script)
        return run_script(script, folder=folder, ranks=2 if distributed else 1, limit_s=TIME_LIMIT_S)

    done = run()
    return run() if done.returncode and AT_EXIT in done.output else done


def _torchrun(script: Path) -> Done:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        command,
        cwd=script.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return Done(done.returncode, done.stdout)


def as_case(block: Block) -> Any:
    """A block that compiles in the usual way needs what inductor's C++ code needs."""
    usual = 'backend="counterpoint"' in block.code and '"eager"' not in block.code
    return pytest.param(block, marks=[pytest.mark.slow, *([pytest.mark.cxx] if usual else [])], id=str(block))


@pytest.mark.parametrize("block", map(as_case, BLOCKS))
def test_a_python_block_runs(block: Block, tmp_path: Path) -> None:
    if block.not_run:
        pytest.skip(block.not_run)
    done = run_block(block, tmp_path)
    assert done.returncode == 0, done.output


def test_the_front_page_has_an_example_that_is_run() -> None:
    assert any(block.page == "README.md" and block.not_run is None for block in BLOCKS)


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    planted, skipped = blocks_of("x\n```python\n1 / 0\n```\n<!-- not run: planted -->\n```python\n1 / 0\n```\n", "page")
    assert "ZeroDivisionError" in run_block(planted, tmp_path).output
    assert (str(planted), planted.not_run, skipped.not_run) == ("page:2", None, "planted")


def generated_pages() -> dict[str, str]:
    """Name -> text of the pages that the code writes."""
    from tools import docs_pages

    return {name: page() for name, page in docs_pages.PAGES.items()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    here = {path.name for path in (page.parent).iterdir()}
    known = here | (set(generated_pages()) if page.parent.name == "docs" else set())
    missing = [
        link for link in LINK.findall(page.read_text()) if link not in known and not (page.parent / link).exists()
    ]
    assert missing == []


def test_every_error_reason_and_pass_has_its_section() -> None:
    from counterpoint import errors
    from counterpoint.ir.reason import REASONS
    from counterpoint.passes.registry import REGISTRY

    pages = generated_pages()
    kinds = [kind.__name__ for kind in vars(errors).values() if isinstance(kind, type)]
    assert [kind for kind in kinds if f"## `{kind}`" not in pages["errors.md"]] == []
    assert [code for code in REASONS if f"| `{code}` |" not in pages["errors.md"]] == []
    assert [name for name in REGISTRY.names() if f"## `{name}`" not in pages["passes.md"]] == []


def test_every_pass_tells_the_four_things() -> None:
    from counterpoint.passes.base import HEADINGS
    from counterpoint.passes.registry import BUILT_IN, REGISTRY

    ours = [REGISTRY.find(name) for name in BUILT_IN]
    missing = [(cls.name, heading) for cls in ours for heading in HEADINGS if f"{heading}:" not in (cls.__doc__ or "")]
    assert missing == []
