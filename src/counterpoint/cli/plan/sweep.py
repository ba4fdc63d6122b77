"""Sweeps: `link=100..800`, `bucket-mb=1..256`, `world-size=8,16,64`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from counterpoint.cli.plan.outcomes import Outcome
from counterpoint.errors import OptionError
from counterpoint.options import near_names

KNOBS: Mapping[str, str] = MappingProxyType({"link": "Gbit/s", "bucket-mb": "MB", "world-size": "ranks"})
"""What can be swept, with its unit."""
MOST_POINTS = 8
WHOLE = frozenset({"world-size"})


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A knob and where to set it."""

    knob: str
    values: tuple[float, ...]

    @staticmethod
    def parse(text: str) -> Sweep:
        """Read `knob=low..high`, in steps of two or a few equal ratios, or `knob=a,b,c`."""
        knob, separator, given = text.partition("=")
        if not separator or knob not in KNOBS:
            near = near_names(knob, KNOBS)
            raise OptionError(
                f"there is nothing to sweep in {text!r}",
                where="--sweep",
                next_step=f"did you mean {near}?" if near else f"write one of {', '.join(KNOBS)} as link=100..800",
            )
        low, dots, high = given.partition("..")
        values = _between(_number(low, text), _number(high, text)) if dots else _listed(given, text)
        if knob in WHOLE:
            values = tuple(float(round(value)) for value in values)
        if min(values) <= 0 or len(set(values)) < 2:
            raise OptionError(
                f"{text!r} is no range", where="--sweep", next_step="give two or more different positive numbers"
            )
        return Sweep(knob=knob, values=tuple(sorted(set(values))))


def _listed(given: str, text: str) -> tuple[float, ...]:
    return tuple(_number(part, text) for part in given.split(","))


def _number(written: str, text: str) -> float:
    try:
        return float(written)
    except ValueError:
        raise OptionError(
            f"{written!r} in {text!r} is not a number", where="--sweep", next_step="write link=100..800 or link=100,400"
        ) from None


def _between(low: float, high: float) -> tuple[float, ...]:
    if not 0 < low < high < float("inf"):
        return (low,)
    doubled = [low]
    while doubled[-1] * 2 <= high * (1 + 1e-9):
        doubled.append(doubled[-1] * 2)
    if len(doubled) <= MOST_POINTS:
        return tuple(doubled) if doubled[-1] >= high * (1 - 1e-9) else (*doubled, high)
    ratio = (high / low) ** (1 / (MOST_POINTS - 1))
    return (*(low * ratio**number for number in range(MOST_POINTS - 1)), high)


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What came of a sweep."""

    sweep: Sweep
    points: tuple[tuple[float, tuple[Outcome, ...]], ...]

    @property
    def unit(self) -> str:
        """Of the knob."""
        return KNOBS[self.sweep.knob]

    def best(self) -> tuple[float, Outcome] | None:
        """The value of the shortest step among the scenarios that the knob changes; None where it changes none."""
        pairs = [(value, outcome) for value, outcomes in self.points for outcome in outcomes]
        steps: dict[str, set[float]] = {}
        for _, outcome in pairs:
            steps.setdefault(outcome.label, set()).add(outcome.step_us)
        changed = [(value, outcome) for value, outcome in pairs if len(steps[outcome.label]) > 1]
        return min(changed, key=lambda pair: pair[1].step_us, default=None)

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        points = [{"value": v, "scenarios": [outcome.to_data() for outcome in found]} for v, found in self.points]
        return {"knob": self.sweep.knob, "unit": self.unit, "points": points}


def swept(sweep: Sweep, at: Callable[[float], tuple[Outcome, ...]]) -> Swept:
    """Go through the values."""
    return Swept(sweep=sweep, points=tuple((value, at(value)) for value in sweep.values))
