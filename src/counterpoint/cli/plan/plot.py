"""Sweeps as a plot, SVG or PNG by the name of the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from counterpoint.cli.plan.sweep import Swept
from counterpoint.errors import CounterpointError

FORMATS = (".svg", ".png", ".pdf")


def check_plot(path: Path) -> None:
    """Refuse early what could not be drawn after minutes of simulating."""
    if path.suffix.lower() not in FORMATS:
        raise CounterpointError(
            f"a plot cannot be a {path.suffix or 'file without an ending'}",
            where=str(path),
            next_step=f"end the name with {', '.join(FORMATS)}",
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise CounterpointError(
            "plots need matplotlib, which is not installed",
            where=str(path),
            next_step="pip install 'counterpoint-compiler[plot]', or leave --plot out",
        ) from error


def draw(path: Path, sweeps: Sequence[Swept], title: str) -> None:
    """One panel a sweep: the step of each scenario, the exposed part of it dashed, and the lower bound."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0 * len(sweeps), 4.2), layout="constrained")
    panels = figure.subplots(1, len(sweeps), squeeze=False)[0]
    for panel, sweep in zip(panels, sweeps, strict=True):
        values = [value for value, _ in sweep.points]
        for number, first in enumerate(sweep.points[0][1]):
            found = [outcomes[number] for _, outcomes in sweep.points]
            colour = f"C{number}"
            panel.plot(values, [one.step_us / 1e3 for one in found], "o-", color=colour, label=f"{first.label}: step")
            exposed = [one.exposed_us / 1e3 for one in found]
            panel.plot(values, exposed, ".--", color=colour, alpha=0.7, label=f"{first.label}: exposed")
        bound = [outcomes[-1].lower_bound_us / 1e3 for _, outcomes in sweep.points]
        panel.plot(values, bound, ":", color="black", label="lower bound of the last")
        panel.set_xscale("log", base=2)
        panel.set_xticks(values, [f"{value:g}" for value in values])
        panel.set_xlabel(f"{sweep.sweep.knob} ({sweep.unit})")
        panel.set_ylabel("ms")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=3 * len(sweeps), fontsize=8)
    figure.suptitle(title, fontsize=10)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise CounterpointError(
            f"the plot cannot be written: {error.strerror}", where=str(path), next_step="name another place"
        ) from error
