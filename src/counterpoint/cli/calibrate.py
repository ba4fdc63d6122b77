"""`counterpoint calibrate`: measure collectives and operators, or take them from traces, into one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from counterpoint.cli.terminal import show
from counterpoint.cli.torchrun import is_first, joined, under_torchrun
from counterpoint.errors import GroupError, OptionError

if TYPE_CHECKING:
    from counterpoint.capture.graph import CapturedGraph
    from counterpoint.cost.fit import Whole
    from counterpoint.cost.measured import MeasuredTable
    from counterpoint.cost.model import CostModel
    from counterpoint.cost.topology import Topology

EXAMPLES = """\b
Examples:
  torchrun --nproc-per-node 2 --no-python counterpoint calibrate --output table.json
  torchrun --nproc-per-node 8 --no-python counterpoint calibrate --mesh 2x4 --graph step.graph --output table.json
  counterpoint calibrate --from-trace trace.json --topology h100x8-ib400 --output table.json

\b
Use the table with options={"cost_table": "table.json"}, or COUNTERPOINT_COST_TABLE=table.json."""

TORCHRUN = "run it under torchrun: torchrun --nproc-per-node 2 --no-python counterpoint calibrate"


@click.command(epilog=EXAMPLES)
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write the table there.")
@click.option(
    "--from-trace", "traces", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take the times from a trace of torch's profiler; several, such as one a rank, are put together.",
)  # fmt: skip
@click.option(
    "--graph", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also measure the compute of the graphs saved there: heavy operators one by one, and each graph as a whole.",
)  # fmt: skip
@click.option(
    "--codegen", type=click.Choice(["inductor", "eager"]), default="inductor", show_default=True,
    help="How the compute of these graphs is run to measure it as a whole.",
)  # fmt: skip
@click.option("--mesh", help="Also measure the groups of a mesh of this shape, such as 2x4.  [default: the world]")
@click.option("--max-mb", type=float, default=256.0, show_default=True, help="The largest payload, in MB.")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Calls of each size.")
@click.option("--backend", help="The backend to measure.  [default: nccl where there are GPUs, else gloo]")
@click.option("--topology", "place", help="Compare with this topology, a preset or a TOML file.")
def calibrate(
    output: Path | None,
    traces: Sequence[Path],
    graph: Path | None,
    codegen: str,
    mesh: str | None,
    max_mb: float,
    repeats: int,
    backend: str | None,
    place: str | None,
) -> None:
    """Measure what collectives and operators take, compare it with the predictions, and write a table of it.

    Every rank that reads the table decides alike, and nothing is measured while compiling. With
    --from-trace nothing is run.
    """
    from counterpoint.cost.model import CostModel
    from counterpoint.cost.presets import topology

    described = topology(place) if place is not None else None
    if traces:
        from counterpoint.runtime.traces import table_from_traces

        _report(table_from_traces(traces), CostModel(topology=described), output)
        return
    if not under_torchrun() and graph is None:
        raise GroupError("there is one process only, and so no link to measure", next_step=TORCHRUN)
    with joined(backend) as alone:
        table = _measured_collectives(alone, mesh, max_mb, repeats)
        if graph is not None:
            table = table.merged(_measured_graphs(graph, codegen, repeats, described))
        if is_first():
            _report(table, CostModel(topology=described), output)


def _measured_collectives(alone: bool, mesh: str | None, max_mb: float, repeats: int) -> MeasuredTable:
    from counterpoint.cost.measured import MeasuredTable
    from counterpoint.runtime.calibrate import SIZES_BYTES, measure_collectives

    if alone:
        return MeasuredTable()
    sizes = [size for size in SIZES_BYTES if size <= max_mb * 2**20] or [SIZES_BYTES[0]]
    return measure_collectives(mesh_groups(mesh), sizes=sizes, repeats=repeats, said=_said)


def _measured_graphs(path: Path, codegen: str, repeats: int, described: Topology | None) -> MeasuredTable:
    """Operators one by one, brought in line with what the graphs take as a whole."""
    from counterpoint.capture.file import load_graphs
    from counterpoint.cost.fit import fitted
    from counterpoint.cost.measured import MeasuredTable
    from counterpoint.cost.model import CostModel
    from counterpoint.runtime.operator_times import agreed, measure_operators

    graphs = load_graphs(path)
    times = measure_operators((n for one in graphs for n in one.gm.graph.nodes), _device(), repeats=repeats, said=_said)
    for key, why in times.skipped.items():
        _said(f"not measured: {key} ({why})")
    device = _device()
    table = MeasuredTable(operators=agreed(times.us), origin=f"operators of {path.name}")
    if device is not None:
        table = replace(table, device_type=device.type)
    model = CostModel(topology=described, table=table, fuses=codegen == "inductor")
    return fitted(table, _wholes(graphs, codegen, repeats, model), model)


def _wholes(graphs: Sequence[CapturedGraph], codegen: str, repeats: int, model: CostModel) -> list[Whole]:
    """What each graph takes as a whole, the same on all ranks."""
    from counterpoint.cost.fit import Whole, compute_us
    from counterpoint.runtime.graph_times import measure_compute
    from counterpoint.runtime.operator_times import agreed

    found: dict[str, float] = {}
    for number, captured in enumerate(graphs):
        _said(f"the compute of {captured.name} as a whole")
        try:
            found[str(number)] = measure_compute(captured.gm, _device(), repeats=repeats, codegen=codegen)
        except Exception as error:
            # Made-up values do not suit every graph, and there may be no compiler or too little memory for it.
            _said(f"not measured: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    wholes = []
    for name, us in agreed(found).items():
        captured = graphs[int(name)]
        summed_us = compute_us(captured.gm.graph.nodes, model)
        _said(f"{captured.name}: {us:.0f} us as a whole, {summed_us:.0f} us by its operators one by one")
        wholes.append(Whole(tuple(captured.gm.graph.nodes), us))
    return wholes


def mesh_groups(mesh: str | None) -> list[Any]:
    """The whole world, and the groups of each dim of a mesh."""
    from torch.distributed.device_mesh import init_device_mesh

    if mesh is None:
        return [None]
    try:
        shape = tuple(int(size) for size in mesh.lower().split("x"))
    except ValueError:
        raise OptionError(f"{mesh!r} is no shape of a mesh", next_step="write it like 2x4") from None
    import torch.distributed as dist

    made = init_device_mesh("cuda" if dist.get_backend() == "nccl" else "cpu", shape)
    return [None, *(made.get_group(dim) for dim in range(len(shape)))]


def _device() -> Any:
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None


def _said(text: str) -> None:
    if is_first():
        click.echo(text, err=True)


def _report(table: MeasuredTable, model: CostModel, output: Path | None) -> None:
    """Predicted against measured, and where the table lies."""
    from counterpoint.cost.accuracy import links_of, predictions
    from counterpoint.cost.model import CostModel
    from counterpoint.report.calibration_text import calibration_view

    views = [(CostModel(links=links_of(table)), "two numbers a group, latency and bandwidth")]
    if model.topology is not None:
        views.insert(0, (model, f"the topology {model.topology.name}"))
    for one, name in views:
        found = predictions(table, one)
        if found:
            show(partial(calibration_view, found, name))
    if table.operators:
        click.echo(f"{len(table.operators)} operators measured")
    if output is not None:
        table.save(output)
        click.echo(f"written to {output}")
