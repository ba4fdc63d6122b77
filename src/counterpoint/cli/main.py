"""The `counterpoint` command: its commands, its exit codes, and how errors look."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import Any

import click

from counterpoint.cli.bench import bench
from counterpoint.cli.calibrate import calibrate
from counterpoint.cli.completion import completion
from counterpoint.cli.demo import demo
from counterpoint.cli.doctor import doctor
from counterpoint.cli.explain import explain
from counterpoint.cli.opt import opt
from counterpoint.cli.plan import plan
from counterpoint.cli.terminal import show_error
from counterpoint.cli.tunnel import tunnel
from counterpoint.errors import ContractError, CounterpointError, OptionError, PassError

EXIT_REFUSED = 1
EXIT_USAGE = 2
USAGE_ERRORS = (OptionError, PassError, ContractError)
"""What was asked for makes no sense, as opposed to: could not be done."""

EPILOG = """\b
Examples:
  counterpoint demo                                          train on two processes, see the gains and a timeline
  counterpoint explain train.py:build --world-size 64        what becomes of every collective, and what to change
  counterpoint plan train.py:build --sweep link=100..800     which cluster, which buckets
  counterpoint doctor                                        what works on this machine

\b
Exit codes: 0 all went well; 1 something was refused, failed or did not verify;
2 the command line, an option or a pipeline makes no sense; 130 interrupted.

\b
Options also come from COUNTERPOINT_* variables and from [tool.counterpoint] of pyproject.toml;
COUNTERPOINT_LOGS=+all logs everything, NO_COLOR=1 writes without colours."""


class ErrorShowingGroup(click.Group):
    """Shows our errors as one block on standard error; a traceback only with --debug."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except CounterpointError as error:
            if ctx.params.get("debug"):
                raise
            show_error(error)
            ctx.exit(EXIT_USAGE if isinstance(error, USAGE_ERRORS) else EXIT_REFUSED)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)


def _version() -> str:
    try:
        return importlib.metadata.version("counterpoint-compiler")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"


@click.group(
    cls=ErrorShowingGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(_version(), prog_name="counterpoint")
@click.option("--debug", is_flag=True, help="Show tracebacks, and what is logged.")
def main(debug: bool) -> None:
    """Counterpoint rewrites the collectives of a distributed PyTorch program, and explains every rewrite."""
    if debug:
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger("counterpoint").setLevel(logging.DEBUG)


main.add_command(opt)
main.add_command(bench)
main.add_command(calibrate)
main.add_command(completion)
main.add_command(demo)
main.add_command(doctor)
main.add_command(explain)
main.add_command(plan)
main.add_command(tunnel)
