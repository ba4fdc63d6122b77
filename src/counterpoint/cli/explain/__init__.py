"""`counterpoint explain`: what becomes of every collective of a model, why, and what to change."""

from counterpoint.cli.explain.command import explain

__all__ = ["explain"]
