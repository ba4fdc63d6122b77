"""The command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from counterpoint.cli.terminal import Progress, show
from counterpoint.cli.torchrun import is_first, joined, under_torchrun

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from counterpoint.cli.doctor.finding import Finding

SCHEMA = 1
EXAMPLES = """\b
Examples:
  counterpoint doctor
  counterpoint doctor --json
  torchrun --nproc-per-node 2 --no-python counterpoint doctor
  torchrun --nnodes 2 --nproc-per-node 8 ... --no-python counterpoint doctor --backend nccl

\b
Exit codes: 0 nothing is broken; 1 something is. What is merely absent breaks nothing."""


@click.command(epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Write everything as JSON, and nothing else.")
@click.option("--backend", help="Under torchrun: the backend to try.  [default: nccl where there are GPUs, else gloo]")
@click.option(
    "--within-s",
    type=click.FloatRange(min=1.0),
    default=60.0,
    show_default=True,
    help="Under torchrun: how long ranks wait for each other.",
)
@click.pass_context
def doctor(ctx: click.Context, /, as_json: bool, backend: str | None, within_s: float) -> None:
    """Look at what works on this machine, each thing by itself, and say why not and what to do.

    Torch and what it supports, compilers, backends, peer access, multicast, symmetric memory, shared memory, the
    options in force. Needs no GPU, no compiler and no process group. Under torchrun the group is tried as well:
    whether all ranks run the same code with the same options, whether sums are right, latency and bandwidth.
    """
    from counterpoint.cli.doctor.finding import State

    with Progress() as progress:
        findings = _findings(backend, within_s, progress.stage if is_first() else lambda _: None)
    healthy = all(finding.state is not State.BROKEN for finding in findings)
    if is_first():
        _report(findings, healthy, as_json)
    ctx.exit(0 if healthy else 1)


def _findings(backend: str | None, within_s: float, said: Callable[[str], Any]) -> list[Finding]:
    from counterpoint.cli.doctor.finding import State, found_by
    from counterpoint.cli.doctor.software import software_probes

    found = list(found_by(software_probes(), said))
    if any(finding.name in ("torch", "torch supports") and finding.state is State.BROKEN for finding in found):
        # Without a torch that works there is nothing to ask the devices with.
        return found
    from counterpoint.cli.doctor.devices import device_probes

    found += found_by(device_probes(), said)
    if under_torchrun():
        said("joining the group")
        found += _group_findings(backend, within_s, said)
    return found


def _group_findings(backend: str | None, within_s: float, said: Callable[[str], Any]) -> list[Finding]:
    from counterpoint.cli.doctor.finding import Finding, State
    from counterpoint.cli.doctor.group import AREA, group_findings

    try:
        with joined(backend, within_s):
            return group_findings(within_s, said)
    except (RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0]
        remedy = "see that all ranks start and reach the address of rank 0, and that the backend fits the devices"
        return [Finding(area=AREA, name="joining", state=State.BROKEN, said=first, remedy=remedy)]


def _report(findings: Sequence[Finding], healthy: bool, as_json: bool) -> None:
    if as_json:
        data = {"schema": SCHEMA, "healthy": healthy, "findings": [finding.to_data() for finding in findings]}
        click.echo(json.dumps(data, indent=2))
        return
    from counterpoint.cli.doctor.view import findings_view

    show(lambda plain: findings_view(findings, plain))
