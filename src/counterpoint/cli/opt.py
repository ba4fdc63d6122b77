"""`counterpoint opt`: run a pipeline of passes on saved graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from counterpoint.cli.compile_flags import compile_flags, given
from counterpoint.cli.terminal import show

if TYPE_CHECKING:
    from counterpoint.capture.graph import CapturedGraph
    from counterpoint.options import CompileOptions
    from counterpoint.passes.registry import Registry
    from counterpoint.passes.report import PipelineReport

EXAMPLES = """\b
Examples:
  counterpoint opt step.graph
  counterpoint opt step.graph --passes "verify-graph{level=paranoid}" --output out.graph
  counterpoint opt step.graph --json > report.json"""


def _list_passes(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from counterpoint.report.pass_list import pass_list_view

    show(pass_list_view)
    ctx.exit()


@click.command(epilog=EXAMPLES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@compile_flags("passes", "verify", "bitwise", "on_error", "topology", "cost_table")
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Save the graphs there.")
@click.option(
    "--write-plan", type=click.Path(dir_okay=False, path_type=Path),
    help="Write what passes decided to this file; schedule-overlap{plan=FILE} carries it out again.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Write the reports as JSON, and nothing else.")
@click.option("--graph/--no-graph", "with_graph", default=True, help="Write the graphs as well.  [default: graph]")
@click.option("--by-module", is_flag=True, help="Group the ledgers by the modules of the user's code.")
@click.option(
    "--list-passes", is_flag=True, is_eager=True, expose_value=False, callback=_list_passes,
    help="List the passes with their options, and stop.",
)  # fmt: skip
@click.pass_context
def opt(
    ctx: click.Context,
    /,
    file: Path,
    output: Path | None,
    write_plan: Path | None,
    as_json: bool,
    with_graph: bool,
    by_module: bool,
    **flags: Any,
) -> None:
    """Run a pipeline of passes on the graphs saved in FILE, and write each graph and its ledger.

    Every collective gets a verdict. A pass that fails, or whose graph does not verify, is undone; the
    exit code is then 1.
    """
    from counterpoint.capture.file import load_graphs, save_graph
    from counterpoint.options import effective
    from counterpoint.report.ledger_json import reports_to_json

    options = effective(given(flags), source="command line").options
    graphs = load_graphs(file)
    reports = optimise(graphs, options)
    if output is not None:
        save_graph(output, graphs)
    if write_plan is not None:
        write_plan.write_text("\n".join(report.plan for report in reports if report.plan), encoding="utf-8")
    if as_json:
        click.echo(reports_to_json(reports))
    else:
        for captured, report in zip(graphs, reports, strict=True):
            _show(captured, report, with_graph, by_module)
    ctx.exit(1 if any(report.problems for report in reports) else 0)


def optimise(
    graphs: Sequence[CapturedGraph], options: CompileOptions, registry: Registry | None = None
) -> list[PipelineReport]:
    """Run the pipeline that the options ask for on captured graphs, in place."""
    from counterpoint.cost.model import CostModel
    from counterpoint.ir.groups import GroupTable
    from counterpoint.passes.pipeline import Pipeline, run_pipeline
    from counterpoint.passes.registry import REGISTRY

    pipeline = Pipeline.of(options, registry or REGISTRY)
    model = CostModel.of(options)
    roles = Counter(captured.role for captured in graphs)
    return [
        run_pipeline(
            captured.gm,
            pipeline,
            options=options,
            groups=GroupTable(captured.groups),
            cost_model=model,
            name=captured.role if roles[captured.role] == 1 else f"{captured.name}/{captured.role}",
        )
        for captured in graphs
    ]


def _show(captured: CapturedGraph, report: PipelineReport, with_graph: bool, by_module: bool) -> None:
    from counterpoint.ir.text import print_graph
    from counterpoint.report.ledger_text import ledger_view
    from counterpoint.report.run_text import run_view

    click.echo(f"{captured.name}: {captured.role} graph of rank {captured.rank} of {captured.world_size}\n")
    if with_graph:
        click.echo(print_graph(captured.gm))
    show(lambda plain: run_view(report, plain=plain))
    click.echo()
    show(lambda plain: ledger_view(report.ledger, by_module=by_module, plain=plain))
