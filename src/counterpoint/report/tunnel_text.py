"""What went through the wind tunnel, as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from counterpoint.report.calibration_text import size_text
from counterpoint.runtime.tunnel.log import Summary


def tunnel_view(
    found: Sequence[Summary], title: str, seconds: float, *, knows_waiting: bool, plain: bool
) -> RenderableType:
    """One row a kind of collective, and what the run took. knows_waiting: whether the host saw who waited; on a GPU the
    device does."""
    if not found:
        return Text(f"{title}: nothing was communicated in {seconds:.2f} s")
    table = Table(box=None if plain else Table().box, pad_edge=not plain)
    table.add_column("collective")
    for column in ("calls", "bytes", "network ms", *(["waited for ms"] if knows_waiting else [])):
        table.add_column(column, justify="right")
    for one in found:
        waited = [f"{one.exposed_us / 1e3:,.2f}"] if knows_waiting else []
        table.add_row(one.kind, str(one.calls), size_text(one.nbytes), f"{one.duration_us / 1e3:,.2f}", *waited)
    total = sum(one.duration_us for one in found) / 1e3
    return Group(table, Text(f"{title}: {total:,.2f} ms of network in a run of {seconds:.2f} s"))
