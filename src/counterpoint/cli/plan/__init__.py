"""`counterpoint plan`: what a step would take on a cluster, with which passes, and what would make it faster."""

from counterpoint.cli.plan.command import plan

__all__ = ["plan"]
