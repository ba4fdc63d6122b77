"""Predicted against measured times, as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from counterpoint.cost.accuracy import Prediction, typical_error


def calibration_view(measured: Sequence[Prediction], against: str, plain: bool) -> RenderableType:
    """One row a point, and the typical error below."""
    table = Table(box=None if plain else Table().box, pad_edge=not plain)
    table.add_column("collective")
    for column in ("ranks", "bytes", "measured us", "predicted us", "error"):
        table.add_column(column, justify="right")
    for one in measured:
        table.add_row(
            one.kind.value,
            str(len(one.layout)),
            size_text(one.nbytes),
            f"{one.measured_us:,.1f}",
            f"{one.predicted_us:,.1f}",
            f"{one.error:+.0%}",
        )
    summary = f"predicted by {against}; typical error {typical_error(measured):.0%} over {len(measured)} points"
    return Group(table, Text(summary))


def size_text(nbytes: float) -> str:
    """Bytes with the largest unit that leaves a number of 1 or more."""
    for unit, size in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} B"
