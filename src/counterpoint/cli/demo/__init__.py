"""`counterpoint demo`: a small transformer on two gloo processes, eager and compiled, with the ledger."""

from counterpoint.cli.demo.command import demo

__all__ = ["demo"]
