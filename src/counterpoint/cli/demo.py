"""`counterpoint demo`."""

from __future__ import annotations

import click


@click.command()
def demo() -> None:
    """Train a small transformer on two processes through the compiler, and show its ledger."""
