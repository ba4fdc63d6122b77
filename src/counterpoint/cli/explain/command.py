"""The command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from counterpoint.cli.compile_flags import compile_flags
from counterpoint.cli.targets import TARGET_HELP, compile_options, target_flags, write_file
from counterpoint.cli.terminal import Progress, show

if TYPE_CHECKING:
    from counterpoint.cli.explain.explanation import Explanation

EXAMPLES = """\b
Examples:
  counterpoint explain step.graph
  counterpoint explain train.py:build --world-size 64 --topology h200x8-ib400
  counterpoint explain train.py:build --parallel fully-shard --html timeline.html
  counterpoint explain train.py:build --fail-if "exposed_us > 500 or left_alone > 0"

\b
Values for --fail-if, each also with _before where the passes change it: step_us, exposed_us, compute_us, peak_bytes,
collectives; and lower_bound_us, bytes, fused, bucketed, pipelined, lowered, hidden, deduplicated, left_alone."""


@click.command(
    epilog=EXAMPLES,
    help="Say what becomes of every collective of a model, why, and what to change.\n\n"
    "Nothing is computed and no GPU is needed: the graph is captured in a pretended world, the passes are run on it, "
    "and the step is simulated before and after them.\n\n" + TARGET_HELP,
)
@target_flags
@compile_flags("topology", "passes", "verify", "bitwise", "cost_table")
@click.option("--every", is_flag=True, help="List each collective, instead of those of like modules together.")
@click.option("--json", "as_json", is_flag=True, help="Write everything as JSON, and nothing else.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write the timeline page there.")
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write a trace for Perfetto there.")
@click.option("--fail-if", "fail_if", metavar="CONDITION", help='Exit with 1 when this holds, "exposed_us > 500".')
@click.pass_context
def explain(
    ctx: click.Context,
    /,
    target: str,
    world_size: int | None,
    parallel: str | None,
    every: bool,
    as_json: bool,
    html: Path | None,
    trace: Path | None,
    fail_if: str | None,
    **flags: Any,
) -> None:
    """Explain a target."""
    from counterpoint.report.condition import Condition

    # Read first: a condition that makes no sense should not cost a capture.
    condition = Condition.parse(fail_if) if fail_if is not None else None
    options = compile_options(flags)
    explanation = _explained(target, world_size, parallel, options)
    if as_json:
        click.echo(json.dumps(explanation.to_data(), indent=2, allow_nan=False))
    else:
        from counterpoint.cli.explain.view import explanation_view

        show(lambda plain: explanation_view(explanation, plain, every))
    _write(explanation, html, trace)
    failed = condition is not None and condition.holds(explanation.values())
    if failed:
        click.echo(f"the condition holds: {fail_if}", err=True)
    ctx.exit(1 if failed or explanation.problems else 0)


def _explained(target: str, world_size: int | None, parallel: str | None, options: Any) -> Explanation:
    from counterpoint.capture.target import is_function, load_target
    from counterpoint.cli.explain.explanation import explain as explain_graphs

    with Progress() as progress:
        if is_function(target):
            progress.stage(f"capturing {target}")
        graphs = load_target(target, world_size=world_size, parallel=parallel)
        return explain_graphs(target, graphs, options)


def _write(explanation: Explanation, html: Path | None, trace: Path | None) -> None:
    if html is not None:
        from counterpoint.report.page import render_page

        write_file(html, render_page(explanation.views(), title=f"Counterpoint: {explanation.target}"))
    if trace is not None:
        write_file(trace, json.dumps(explanation.trace()))
