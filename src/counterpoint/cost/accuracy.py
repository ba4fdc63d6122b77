"""How well a model foretells what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from counterpoint.cost.measured import MeasuredTable
from counterpoint.cost.model import CostModel
from counterpoint.cost.table import Layout, LinkTable
from counterpoint.ir.ops import Kind


@dataclass(frozen=True)
class Prediction:
    """One measured point, and what the model says of it."""

    kind: Kind
    layout: Layout
    nbytes: float
    measured_us: float
    predicted_us: float

    @property
    def error(self) -> float:
        """By which part the prediction is too long; negative where it is too short."""
        return self.predicted_us / self.measured_us - 1 if self.measured_us > 0 else 0.0


def predictions(table: MeasuredTable, model: CostModel) -> tuple[Prediction, ...]:
    """What a model says, without this table, of every point that was measured."""
    blind = replace(model, table=None)
    device = table.device_type
    found = []
    for (kind, layout), curve in sorted(table.collectives.items(), key=lambda item: (item[0][0].value, item[0][1])):
        for nbytes, us in curve:
            found.append(
                Prediction(kind, layout, nbytes, us, blind.collective_us(kind, nbytes, layout, device_type=device))
            )
    return tuple(found)


def typical_error(found: Sequence[Prediction]) -> float:
    """The median of the errors, signs left out."""
    return median(abs(one.error) for one in found) if found else 0.0


def links_of(table: MeasuredTable) -> LinkTable:
    """What was measured, by two numbers a group: for who would rather carry these than a table."""
    links = LinkTable()
    for layout in dict.fromkeys(layout for _, layout in table.collectives):
        link = table.link(layout)
        links = links if link is None else links.with_link(layout, link)
    return links
