"""The command line: `counterpoint COMMAND`. One file a command; what they need of torch is imported when they run."""

from counterpoint.cli.main import main

__all__ = ["main"]
