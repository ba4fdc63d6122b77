"""`counterpoint tunnel`: run a program as one rank of any cluster, on this machine's one device."""

from __future__ import annotations

import time
from pathlib import Path

import click

from counterpoint.cli.terminal import show

EXAMPLES = """\b
Examples:
  counterpoint tunnel --world-size 64 --topology h200x8-ib400 train.py --steps 10
  counterpoint tunnel --world-size 16 --latency-us 50 --bandwidth-gbps 10 train.py
  counterpoint tunnel --world-size 64 --cost-table table.json --contention-sms 16 train.py"""


@click.command(epilog=EXAMPLES, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--world-size", type=click.IntRange(1), required=True, help="Ranks of the cluster.")
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="The rank to stand in for.")
@click.option("--topology", "place", help="The cluster: a preset or a TOML file.  [default: typical links]")
@click.option(
    "--cost-table", type=click.Path(exists=True, dir_okay=False), help="Measured times, which go before the topology."
)
@click.option("--latency-us", type=click.FloatRange(0), help="What a small collective takes, over every link.")
@click.option("--bandwidth-gbps", type=click.FloatRange(0, min_open=True), help="What a rank sends, in Gbit/s.")
@click.option(
    "--contention-sms", type=click.IntRange(0), default=0, show_default=True,
    help="Multiprocessors that a collective keeps busy; on a CPU any number keeps one core busy.",
)  # fmt: skip
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def tunnel(
    ctx: click.Context,
    /,
    world_size: int,
    rank: int,
    place: str | None,
    cost_table: str | None,
    latency_us: float | None,
    bandwidth_gbps: float | None,
    contention_sms: int,
    script: Path,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT, unchanged, as one rank of a cluster that is not there.

    Kernels are real, on a GPU or a CPU, eager or compiled; every collective takes the time that it would take on the
    cluster. All ranks are taken to hold equal data. Variables such as RANK are set as torchrun sets them.
    What has been communicated is written at the end; the exit code is the script's.
    """
    import torch

    from counterpoint.cost.model import CostModel
    from counterpoint.options import CompileOptions
    from counterpoint.report.tunnel_text import tunnel_view
    from counterpoint.runtime.tunnel import Timing, open_tunnel
    from counterpoint.runtime.tunnel.script import run_script

    options = CompileOptions(
        topology=place, cost_table=cost_table, latency_us=latency_us, bandwidth_gbps=bandwidth_gbps
    )
    timing = Timing(costs=CostModel.of(options), contention_sms=contention_sms)
    began = time.perf_counter()
    with open_tunnel(world_size, rank=rank, timing=timing) as opened:
        code = run_script(opened, script, arguments)
        found = opened.log.summary()
    title = f"rank {rank} of {world_size}, {place or 'typical links'}"
    seconds, on_host = time.perf_counter() - began, not torch.cuda.is_available()
    show(lambda plain: tunnel_view(found, title, seconds, knows_waiting=on_host, plain=plain))
    ctx.exit(code)
