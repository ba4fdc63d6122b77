"""The ledger as a table: one line a collective, totals by verdict, and what each reason means."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import PurePath

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from counterpoint.ir.reason import REASONS
from counterpoint.passes.ledger import Entry, Facts, Ledger, Total, VerdictKind
from counterpoint.report.words import time_text

Cell = Callable[[Entry], str]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STYLES = {VerdictKind.LEFT_ALONE: "yellow"}
_DONE = "green"


def bytes_text(nbytes: int) -> str:
    """A size for reading: 512 B, 1.5 KiB, 25 MiB."""
    size, unit = float(nbytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    rounded = f"{size:.0f}" if size >= 100 else f"{size:.1f}".removesuffix(".0")
    return f"{rounded} {_UNITS[unit]}"


def ledger_view(ledger: Ledger, *, by_module: bool = False, plain: bool = False) -> RenderableType:
    """The whole ledger for a rich console; `plain` draws without lines and colours."""
    if not ledger.entries:
        return Text("The graph has no collectives.")
    table = entries_table(ledger, by_module, plain)
    return Group(table, Text(""), totals_table(ledger, plain), *_reason_lines(ledger))


def ledger_text(ledger: Ledger, *, by_module: bool = False) -> str:
    """The whole ledger as plain text, as wide as it needs to be."""
    return plain_text(ledger_view(ledger, by_module=by_module, plain=True))


def plain_text(view: RenderableType) -> str:
    """Anything that rich can draw, without colours and never cut off at the width of a terminal."""
    wide = Console(file=io.StringIO(), width=10_000, color_system=None, legacy_windows=False)
    width = max(1, Measurement.get(wide, wide.options, view).maximum)
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, legacy_windows=False).print(view)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def new_table(plain: bool) -> Table:
    """An empty table in the manner of this package."""
    return Table(box=None if plain else box.SIMPLE_HEAD, pad_edge=False, header_style="" if plain else "bold")


def entries_table(ledger: Ledger, by_module: bool, plain: bool) -> Table:
    """One line a collective."""
    columns = [c for c in _COLUMNS if not (by_module and c is module_cell)]
    columns = [cell for cell in columns if any(cell(entry) for entry in ledger)]
    table = new_table(plain)
    for cell in columns:
        right = cell in (bytes_cell, exposed_cell)
        table.add_column(_COLUMNS[cell], justify="right" if right else "left", no_wrap=right, overflow="fold")
    if not by_module:
        for entry in ledger:
            table.add_row(*_row(entry, columns, plain))
        return table
    # Sorting by module keeps the order of the graph within each.
    for module, members in groupby(sorted(ledger, key=_module), _module):
        table.add_row(Text(module, style="" if plain else "bold"))
        for entry in members:
            first, *rest = _row(entry, columns, plain)
            table.add_row(Text.assemble("  ", first), *rest)
    return table


def _row(entry: Entry, columns: Sequence[Cell], plain: bool) -> list[Text]:
    style = "" if plain else _STYLES.get(entry.verdict.kind, _DONE)
    return [Text(cell(entry), style=style if cell is verdict_cell else "") for cell in columns]


def _module(entry: Entry) -> str:
    return entry.facts.module or "(no module)"


def origin_cell(entry: Entry) -> str:
    """The name of the collective."""
    return entry.facts.origin


def group_cell(entry: Entry) -> str:
    """The group and how many ranks it has."""
    size = entry.facts.group_size
    return entry.facts.group + (f" ({size} ranks)" if size is not None else "")


def payload_cell(entry: Entry) -> str:
    """What is sent."""
    return payload_text(entry.facts)


def bytes_cell(entry: Entry) -> str:
    """How much is sent."""
    return "?" if entry.facts.nbytes is None else bytes_text(entry.facts.nbytes)


def verdict_cell(entry: Entry) -> str:
    """What became of it; the node in the way only when it is another than the collective itself."""
    verdict = entry.verdict
    return str(replace(verdict, blocking="") if verdict.blocking == entry.facts.node else verdict)


def exposed_cell(entry: Entry) -> str:
    """The predicted time in which compute waits for it, before and after; nothing without a prediction."""
    before, after = entry.facts.exposed_before_us, entry.exposed_after_us
    if before is None and after is None:
        return ""
    first, last = time_text(before), time_text(after)
    return last if first == last else f"{first} to {last}"


def module_cell(entry: Entry) -> str:
    """The module of the user's code."""
    return entry.facts.module


def source_cell(entry: Entry) -> str:
    """`/home/me/model.py:12 in forward` is long; the file's own name and the line say enough in a table."""
    place, _, _function = entry.facts.source.partition(" in ")
    return PurePath(place).name if place else ""


_COLUMNS: dict[Cell, str] = {
    origin_cell: "collective",
    group_cell: "group",
    payload_cell: "payload",
    bytes_cell: "bytes",
    exposed_cell: "exposed",
    verdict_cell: "verdict",
    module_cell: "module",
    source_cell: "source",
}
"""Columns that are empty in every row are not shown."""


def payload_text(facts: Facts) -> str:
    """What is sent, `sum float32 1024x1024`; of a coalesced collective the first tensor and how many more."""
    tensors = [f"{dtype} {shape}" for dtype, shape in zip(facts.dtypes, facts.shapes, strict=True)]
    more = [f"and {len(tensors) - 1} more"] if len(tensors) > 1 else []
    return " ".join([*([facts.reduce_op] if facts.reduce_op else []), *tensors[:1], *more])


def totals_table(ledger: Ledger, plain: bool) -> Table:
    """One line a verdict, and one for all."""
    table = new_table(plain)
    table.add_column("verdict")
    for heading in ("collectives", "share", "bytes"):
        table.add_column(heading, justify="right")
    totals = ledger.totals()
    for kind, total in totals.items():
        table.add_row(kind.value, str(total.count), f"{total.percent:.1f} %", _size(total))
    everything = Total(
        count=sum(t.count for t in totals.values()),
        nbytes=sum(t.nbytes for t in totals.values()),
        unsized=sum(t.unsized for t in totals.values()),
        percent=100.0,
    )
    table.add_row("all", str(everything.count), "100.0 %", _size(everything))
    return table


def _size(total: Total) -> str:
    return bytes_text(total.nbytes) + (f" and {total.unsized} of unknown size" if total.unsized else "")


def _reason_lines(ledger: Ledger) -> Iterator[Text]:
    codes = Counter(e.verdict.code for e in ledger if e.verdict.kind is VerdictKind.LEFT_ALONE)
    if codes:
        yield Text("")
    for code, count in sorted(codes.items()):
        reason = REASONS[code]
        yield Text(f"{code} ({count}): {reason.meaning}; {reason.hint}.")
