"""A study as text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from counterpoint.cli.plan.outcomes import Outcome
from counterpoint.cli.plan.study import Study
from counterpoint.cli.plan.sweep import Swept
from counterpoint.report.ledger_text import bytes_text, new_table
from counterpoint.report.words import time_text

WORTH = 0.01
"""A change that saves less of the step is not worth a word."""


def study_view(study: Study, plain: bool = False) -> RenderableType:
    """The whole study."""
    bold = "" if plain else "bold"
    title = f"{study.target}: rank 0 of {study.world_size}, {study.topology.name}, predicted"
    parts: list[RenderableType] = [Text(title, style=bold), _scenarios(study, plain), Text("")]
    parts += [Text(f"What would pay, beside {study.best.label!r}", style=bold), _knobs(study, plain)]
    parts += [Text(line) for line in _conclusions(study)]
    for sweep in study.sweeps:
        parts += [Text(""), Text(f"Step by {sweep.sweep.knob}", style=bold), _sweep(sweep, plain), Text(_best(sweep))]
    return Group(*parts)


def _scenarios(study: Study, plain: bool) -> RenderableType:
    table = new_table(plain)
    table.add_column("passes", overflow="fold")
    for heading in ("step", "exposed", "lower bound", "above it", "peak memory", "collectives"):
        table.add_column(heading, justify="right")
    for found in study.outcomes:
        above = found.step_us / found.lower_bound_us - 1 if found.lower_bound_us > 0 else 0.0
        table.add_row(
            Text(found.label, style="green" if found is study.best and not plain else ""),
            *(time_text(us) for us in (found.step_us, found.exposed_us, found.lower_bound_us)),
            f"{100 * above:.0f} %",
            bytes_text(found.peak_bytes),
            str(found.collectives),
        )
    return table


def _knobs(study: Study, plain: bool) -> RenderableType:
    table = new_table(plain)
    table.add_column("change")
    for heading in ("step", "saves"):
        table.add_column(heading, justify="right")
    for payoff in study.payoffs:
        table.add_row(payoff.label, time_text(payoff.step_us), f"{100 * payoff.gain:.0f} %")
    return table


def _conclusions(study: Study) -> Iterator[str]:
    first, best = study.outcomes[0], study.best
    if first.step_us > 0 and best is not first:
        saved = 1 - best.step_us / first.step_us
        yield f"Passes ({best.label}) save {100 * saved:.0f} % of the step as written."
    top = study.payoffs[0] if study.payoffs else None
    if top is not None and top.gain > WORTH:
        yield f"The knob that pays most is {top.label}: {100 * top.gain:.0f} % of the step."
    else:
        yield "No knob that was tried saves more than 1 % of the step."


def _sweep(sweep: Swept, plain: bool) -> RenderableType:
    table = new_table(plain)
    table.add_column(f"{sweep.sweep.knob} ({sweep.unit})", justify="right")
    labels = [found.label for found in sweep.points[0][1]]
    for label in labels:
        table.add_column(label, justify="right")
        table.add_column("exposed", justify="right")
    table.add_column("lower bound", justify="right")
    for value, outcomes in sweep.points:
        table.add_row(f"{value:g}", *_cells(outcomes), time_text(min(found.lower_bound_us for found in outcomes)))
    return table


def _cells(outcomes: tuple[Outcome, ...]) -> Iterator[str]:
    for found in outcomes:
        yield time_text(found.step_us)
        yield time_text(found.exposed_us)


def _best(sweep: Swept) -> str:
    best = sweep.best()
    if best is None:
        return f"{sweep.sweep.knob} changes nothing here."
    value, found = best
    shortest = f"The shortest step is {time_text(found.step_us)}, at {value:g} {sweep.unit} with {found.label!r}"
    same = [one for one in sweep.points[0][1] if one.label != found.label and one.step_us < found.step_us]
    unmoved = [one.label for one in same if all(other.step_us == one.step_us for other in _of(sweep, one.label))]
    if unmoved:
        return f"{shortest}. {', '.join(map(repr, unmoved))} is shorter, and {sweep.sweep.knob} does not change it."
    return f"{shortest}."


def _of(sweep: Swept, label: str) -> Iterator[Outcome]:
    return (one for _, outcomes in sweep.points for one in outcomes if one.label == label)
