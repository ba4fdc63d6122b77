"""What a simulated step looks like, as frozen data: spans on lanes, memory over time, totals and lower bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from counterpoint.errors import OptionError

SCHEMA = 1
COMPUTE = "compute"
"""The lane of the compute stream. Every other lane is a channel or a copy engine."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Something that takes time on a lane."""

    lane: str
    name: str
    """The node."""
    start_us: float
    end_us: float
    kind: str
    """`compute`, `launch`, `pipelined` or `wait` on the compute lane, elsewhere the kind of collective."""
    nbytes: int = 0
    """Of the whole tensor that a collective is about."""
    exposed_us: float = 0.0
    """How long the compute stream stands waiting for this collective."""
    origin: tuple[str, ...] = ()
    """The collectives of the input graph whose work this is, by name."""
    source: str = ""
    """The user's line of code."""
    module: str = ""
    """The user's module."""

    @property
    def us(self) -> float:
        """How long it takes."""
        return self.end_us - self.start_us


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What no order of the same work can beat."""

    compute_us: float
    """All work of the compute stream, with the least that must come before it and after it."""
    channels_us: Mapping[str, float]
    """The same for each channel."""
    critical_path_us: float
    """The longest chain of work in which each needs the one before."""

    @property
    def step_us(self) -> float:
        """The longest of them: no step can be shorter."""
        return max((self.compute_us, self.critical_path_us, *self.channels_us.values()))


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A simulated step."""

    spans: tuple[Span, ...]
    """Lane by lane they do not overlap; in order of the graph."""
    memory: tuple[tuple[float, int], ...]
    """Bytes alive from each moment on."""
    step_us: float
    compute_us: float
    """Time in which the compute stream works, launches included."""
    exposed_us: float
    """Time in which it stands waiting for communication."""
    peak_bytes: int
    bounds: Bounds
    unknown: tuple[str, ...] = ()
    """Nodes of which nobody knows how long they take; they count as no time."""
    notes: tuple[str, ...] = ()
    """What the simulation had to assume."""
    title: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What it was simulated with, as plain data."""

    @property
    def lanes(self) -> tuple[str, ...]:
        """Compute first, then the others in the order in which they are used."""
        return tuple(dict.fromkeys([COMPUTE, *(span.lane for span in self.spans)]))

    @property
    def collectives(self) -> Iterator[Span]:
        """The spans that are communication."""
        return (span for span in self.spans if span.lane != COMPUTE)

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = asdict(self)
        data["memory"] = [list(point) for point in self.memory]
        return {"schema": SCHEMA, **data, "lanes": list(self.lanes)}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Timeline:
        """The timeline that `to_data` wrote."""
        if data.get("schema") != SCHEMA:
            raise OptionError(
                f"this is no timeline of schema {SCHEMA}: {data.get('schema')!r}", next_step="simulate again"
            )
        rest = {key: value for key, value in data.items() if key not in ("schema", "lanes")}
        rest["spans"] = tuple(Span(**{**span, "origin": tuple(span["origin"])}) for span in data["spans"])
        rest["memory"] = tuple((float(us), int(nbytes)) for us, nbytes in data["memory"])
        rest["bounds"] = Bounds(**data["bounds"])
        rest["unknown"], rest["notes"] = tuple(data["unknown"]), tuple(data["notes"])
        return Timeline(**rest)

    def chrome_trace(self) -> dict[str, Any]:
        """Events for chrome://tracing and Perfetto: one thread a lane, and a counter of memory."""
        threads = {lane: number for number, lane in enumerate(self.lanes)}
        name = self.title or "step"
        events: list[dict[str, Any]] = [{"ph": "M", "pid": 0, "name": "process_name", "args": {"name": name}}]
        for lane, number in threads.items():
            events.append({"ph": "M", "pid": 0, "tid": number, "name": "thread_name", "args": {"name": lane}})
            events.append(
                {"ph": "M", "pid": 0, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}
            )
        events += [_event(span, threads[span.lane]) for span in self.spans]
        events += [
            {"ph": "C", "pid": 0, "name": "memory", "ts": us, "args": {"bytes": nbytes}} for us, nbytes in self.memory
        ]
        return {"traceEvents": events, "displayTimeUnit": "ms"}


def _event(span: Span, thread: int) -> dict[str, Any]:
    details = {"bytes": span.nbytes, "exposed_us": span.exposed_us, "source": span.source, "module": span.module}
    details["origin"] = ", ".join(span.origin)
    return {
        "ph": "X",
        "pid": 0,
        "tid": thread,
        "name": span.name,
        "cat": span.kind,
        "ts": span.start_us,
        "dur": span.us,
        "args": {key: value for key, value in details.items() if value},
    }
