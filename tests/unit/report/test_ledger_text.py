"""The ledger as text: the same for a file as for a log, nothing cut off, and everything summed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from counterpoint.errors import CounterpointError
from counterpoint.ir.build import GraphBuilder, collectives_in
from counterpoint.ir.reason import Refusal
from counterpoint.passes.book import LedgerBook
from counterpoint.passes.ledger import Ledger
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.report.ledger_json import reports_from_json, reports_to_json
from counterpoint.report.ledger_text import bytes_text, ledger_text, ledger_view, plain_text
from counterpoint.report.run_text import run_view

C10D = torch.ops._c10d_functional


def ledger() -> Ledger:
    builder = GraphBuilder(groups={"dp": range(4)})
    x, y = builder.input("x", (1024, 1024)), builder.input("y", (3,), torch.bfloat16)
    many = builder.call(C10D.all_reduce_coalesced.default, [x, y], "avg", "dp")
    parts = [builder.wait(builder.call(torch.ops.aten.clone.default, y))]
    gm = builder.finish(builder.all_reduce(x, group="dp"), builder.all_gather(y, "dp"), many, *parts)
    first, *_ = starts = collectives_in(gm.graph)
    for number, node in enumerate(starts):
        node.meta["stack_trace"] = f'  File "/home/me/train.py", line {number + 1}, in forward\n    x\n'
        node.meta["nn_module_stack"] = {"l": (f"L['self'].layers[{number % 2}]", "Layer")}
    book = LedgerBook.open(gm.graph, "backward", builder.groups)
    book.page("bucket").bucketed(starts[1], into="bucket 0")
    book.page("pipeline").left_alone(first, Refusal("no-wait", "relu_7"))
    return book.close()


EXPECTED = Path(__file__).with_name("ledger.txt").read_text(encoding="utf-8")


def test_the_whole_ledger_as_text() -> None:
    assert ledger_text(ledger()) == EXPECTED


def test_grouped_by_module() -> None:
    text = ledger_text(ledger(), by_module=True)
    lines = [line for line in text.splitlines() if line.startswith(("layers", "  backward"))]
    assert [line.split()[0] for line in lines] == [
        "layers.0",
        "backward/all_reduce#0",
        "backward/all_gather#0",
        "layers.1",
        "backward/all_reduce#1",
    ]
    assert "module" not in text.splitlines()[0]


def test_a_terminal_gets_colours_and_a_narrow_one_folds() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=60, color_system="standard", legacy_windows=False)
    console.print(ledger_view(ledger()))
    assert "\x1b[" in file.getvalue()
    assert "…" not in file.getvalue()


def test_no_collectives() -> None:
    assert ledger_text(Ledger()) == "The graph has no collectives.\n"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1536, "1.5 KiB"),
        (25 * 2**20, "25 MiB"),
        (2**20 - 1, "1024 KiB"),
        (3 * 2**50, "3072 TiB"),
    ],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert bytes_text(nbytes) == text


def test_the_run_as_text_and_json() -> None:
    builder = GraphBuilder()
    gm = builder.finish(builder.all_reduce(builder.input("x", (4,))))
    report = run_pipeline(gm, Pipeline.parse("verify-graph"), groups=builder.groups)
    first, second = plain_text(run_view(report, plain=True)).splitlines()
    assert first.split() == ["pass", "ended", "time", "verified", "in", "collectives", "edits", "calls"]
    assert second.split()[:2] == ["verify-graph", "done"]
    assert reports_from_json(reports_to_json([report])) == [report]
    assert plain_text(run_view(run_pipeline(gm, Pipeline()), plain=True)) == "No pass was run.\n"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"graphs": [{}]}'])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(CounterpointError, match="not the report of a pipeline"):
        reports_from_json(text)
