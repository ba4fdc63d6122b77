"""What doctor finds: plain data, one thing each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from counterpoint.errors import CounterpointError


class State(Enum):
    """How it is with a thing."""

    WORKS = "works"
    ABSENT = "absent"
    """Not here, and nothing is wrong with that: what needs it is done in another way."""
    BROKEN = "broken"
    """Something is wrong, and the remedy says what to do."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    area: str
    name: str
    state: State
    said: str
    """What was found, or why not, in plain words."""
    remedy: str = ""
    """What to do; empty where nothing needs to be done."""

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "area": self.area,
            "name": self.name,
            "state": self.state.value,
            "said": self.said,
            "remedy": self.remedy,
        }


class Answer(NamedTuple):
    """What a probe says of its thing."""

    state: State
    said: str
    remedy: str = ""


def works(said: str) -> Answer:
    """It does."""
    return Answer(State.WORKS, said)


def absent(said: str, remedy: str = "") -> Answer:
    """It is not here, which is no fault."""
    return Answer(State.ABSENT, said, remedy)


def broken(said: str, remedy: str) -> Answer:
    """It is here, or ought to be, and does not work."""
    return Answer(State.BROKEN, said, remedy)


class Probe(NamedTuple):
    """One thing to look at."""

    area: str
    name: str
    look: Callable[[], Answer]


def found_by(probes: Iterable[Probe], said: Callable[[str], object] = lambda _: None) -> Iterator[Finding]:
    """Look at each thing by itself: one that fails is a finding, and keeps no other from being looked at."""
    area = ""
    for probe in probes:
        if probe.area != area:
            area = probe.area
            said(f"looking at {area}")
        try:
            answer = probe.look()
        except CounterpointError as error:
            answer = broken(error.what, error.next_step or "")
        except Exception as error:
            first = next(iter(str(error).splitlines()), "")
            answer = broken(f"looking at it failed with {type(error).__name__}: {first}", "report this as a defect")
        yield Finding(area=probe.area, name=probe.name, state=answer.state, said=answer.said, remedy=answer.remedy)
