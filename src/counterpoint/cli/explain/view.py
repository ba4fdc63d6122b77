"""An explanation as text: for each graph the ledger by module, what to change, and the predicted times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from counterpoint.cli.explain.explanation import Explained, Explanation
from counterpoint.ir.reason import REASONS
from counterpoint.passes.ledger import Entry, Ledger, VerdictKind
from counterpoint.report.ledger_text import bytes_text, entries_table, new_table, totals_table
from counterpoint.report.words import blocking_text, time_text
from counterpoint.sim.timeline import Timeline

_NAMES = re.compile(r" bucket \d+ of \d+$")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
PLACES = 3
"""Lines of the user's code that are shown for one reason."""


def explanation_view(explanation: Explanation, plain: bool = False, every: bool = False) -> RenderableType:
    """The whole explanation; `every` lists each collective, instead of those of like modules together."""
    parts: list[RenderableType] = [Text(f"{explanation.target}: {explanation.setting}", style=_bold(plain))]
    pipeline = explanation.graphs[0].prediction.report.pipeline
    parts.append(Text(f"passes: {pipeline or 'none'}"))
    if not any(graph.prediction.report.ledger.entries for graph in explanation.graphs):
        parts.append(
            Text("There are no collectives, so there is nothing to explain. Wrap the model, or name --parallel.")
        )
    for graph in explanation.graphs:
        parts += [Text(""), *_graph_parts(graph, plain, every, alone=len(explanation.graphs) == 1)]
    if len(explanation.graphs) > 1:
        parts += [Text(""), Text("all graphs, one after the other", style=_bold(plain)), _total_line(explanation)]
    return Group(*parts)


def _graph_parts(graph: Explained, plain: bool, every: bool, alone: bool) -> Iterator[RenderableType]:
    found = graph.prediction
    ledger = found.report.ledger
    if not alone:
        yield Text(f"{graph.name}", style=_bold(plain))
    if not ledger.entries:
        yield Text("no collectives")
    else:
        yield entries_table(ledger, by_module=True, plain=plain) if every else modules_table(ledger, plain)
        yield Text("")
        yield totals_table(ledger, plain)
        yield from _advice(ledger, plain)
    yield Text("")
    yield times_table({"before": found.before, "after": found.after}, plain)
    for note in dict.fromkeys([*found.before.notes, *found.report.notes]):
        yield Text(f"note: {note}", style="" if plain else "dim")
    for problem in found.report.problems:
        yield Text(problem, style="" if plain else "red")


def modules_table(ledger: Ledger, plain: bool) -> RenderableType:
    """One line for the collectives of like modules, `layers.*.mlp`, that came to the same."""
    table = new_table(plain)
    for heading in ("module", "collectives"):
        table.add_column(heading, overflow="fold")
    for heading in ("bytes", "exposed before", "after"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    # A dictionary keeps the order in which the kinds of modules first occur.
    like: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in ledger:
        like.setdefault(_likeness(entry), []).append(entry)
    order = {module: number for number, module in enumerate(dict.fromkeys(module for module, _, _ in like))}
    rows = sorted(like.items(), key=lambda item: order[item[0][0]])
    for module, members in groupby(rows, key=lambda item: item[0][0]):
        shown = module
        for (_, kind, verdict), entries in members:
            before = sum(entry.facts.exposed_before_us or 0.0 for entry in entries)
            after = sum(entry.exposed_after_us or 0.0 for entry in entries)
            nbytes = sum(entry.facts.nbytes or 0 for entry in entries)
            style = "" if plain else "yellow" if verdict.startswith(VerdictKind.LEFT_ALONE.value) else "green"
            cells = (bytes_text(nbytes), time_text(before), time_text(after), Text(verdict, style=style))
            table.add_row(shown, f"{len(entries)} {kind}", *cells)
            shown = ""
    return table


def _likeness(entry: Entry) -> tuple[str, str, str]:
    facts, verdict = entry.facts, entry.verdict
    module = _NUMBER.sub("*", facts.module) or "(no module)"
    said = f"{verdict.kind.value}: {verdict.code}" if verdict.code else _NAMES.sub("", str(verdict))
    return module, facts.kind, said


def _advice(ledger: Ledger, plain: bool) -> Iterator[RenderableType]:
    """For each reason: how many, what it means, what to change, and where."""
    left = [entry for entry in ledger if entry.verdict.kind is VerdictKind.LEFT_ALONE]
    if left:
        yield Text("")
        yield Text("what to change", style=_bold(plain))
    for code in sorted({entry.verdict.code for entry in left}):
        entries = [entry for entry in left if entry.verdict.code == code]
        yield Text(f"{code} ({len(entries)}): {REASONS[code].meaning}")
        for hint in dict.fromkeys(entry.verdict.hint or REASONS[code].hint for entry in entries):
            yield Padding(Text(hint), (0, 0, 0, 2))
        for place in list(dict.fromkeys(filter(None, map(_place, entries))))[:PLACES]:
            yield Padding(Text(place, style="" if plain else "dim"), (0, 0, 0, 2))


def _place(entry: Entry) -> str:
    facts, blocking = entry.facts, blocking_text(entry)
    if blocking:
        return f"{facts.origin}: in the way is {blocking}"
    return f"{facts.origin}: {facts.source}" if facts.source else ""


def times_table(timelines: dict[str, Timeline], plain: bool) -> RenderableType:
    """Predicted times and memory, one line a timeline."""
    table = new_table(plain)
    table.add_column("predicted")
    for heading in ("step", "exposed", "compute", "lower bound", "peak memory"):
        table.add_column(heading, justify="right")
    for label, timeline in timelines.items():
        times = (timeline.step_us, timeline.exposed_us, timeline.compute_us, timeline.bounds.step_us)
        table.add_row(label, *map(time_text, times), bytes_text(timeline.peak_bytes))
    return table


def _total_line(explanation: Explanation) -> Text:
    values = explanation.values()
    return Text(
        f"collectives {values['collectives_before']:g} to {values['collectives']:g}, "
        f"step {time_text(values['step_before_us'])} to {time_text(values['step_us'])}, "
        f"exposed {time_text(values['exposed_before_us'])} to {time_text(values['exposed_us'])}"
    )


def _bold(plain: bool) -> str:
    return "" if plain else "bold"
