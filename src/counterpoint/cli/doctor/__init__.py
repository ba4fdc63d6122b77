"""`counterpoint doctor`: what works on this machine and in this group, each found out by itself, and what to do."""

from counterpoint.cli.doctor.command import doctor

__all__ = ["doctor"]
