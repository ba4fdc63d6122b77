"""A plan as text: which collectives share a bucket, and before which step each starts and is waited for early.

    plan "forward" for 3f2ab1c09d12e4f7
    mode custom
    bucket all_gather_into_tensor all_gather_into_tensor_1
    move mm_5 mm_6 before mm_2
    before mm: start all_gather_into_tensor
    before mm_1: wait reduce_scatter_tensor; start all_gather_into_tensor_2
    at the end: start reduce_scatter_tensor_1
    over all_gather_into_tensor reduce_scatter_tensor

A collective goes by the name of its start in the graph that the pass gets, a bucket by that of its first member, a step
by the name of its node. Steps that move stand one behind the other before the one named, or `at the end`; all others
stand as they stood. `over` is the order in which results are expected; without it the order of nodes is as it was,
and only buckets changed. A file holds a plan for each graph; `#` begins a comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from counterpoint.errors import OptionError
from counterpoint.passes.bucket_merge import BucketMode

END = "at the end"
NAMES_A_LINE = 6
_HEAD = re.compile(r'plan ("(?:[^"\\]|\\.)*") for ([0-9a-f]+)')
_STEP = re.compile(rf"(?:before (\S+)|{END}): (.+)")
_MOVE = re.compile(rf"move (\S+(?: +\S+)*?) (?:before (\S+)|{END})")
_PARTS = {"wait": "landings", "start": "launches"}


@dataclass(frozen=True)
class Moment:
    """What happens before one step."""

    before: str | None
    """The step; None for the end."""
    landings: tuple[str, ...] = ()
    """What is waited for."""
    launches: tuple[str, ...] = ()
    """What starts then."""

    @property
    def text(self) -> str:
        """One line."""
        parts = [f"wait {' '.join(self.landings)}"] if self.landings else []
        parts += [f"start {' '.join(self.launches)}"] if self.launches else []
        return f"{END if self.before is None else f'before {self.before}'}: {'; '.join(parts)}"


@dataclass(frozen=True)
class Move:
    """Steps that change their place."""

    steps: tuple[str, ...]
    before: str | None
    """One that keeps its own; None for the end."""

    @property
    def text(self) -> str:
        """One line."""
        return f"move {' '.join(self.steps)} {END if self.before is None else f'before {self.before}'}"


@dataclass(frozen=True, kw_only=True)
class WrittenPlan:
    """The plan of one graph."""

    graph: str
    """What the graph is called, for people."""
    identity: str
    """Of the graph that it was made for."""
    mode: BucketMode
    buckets: tuple[tuple[str, ...], ...] = ()
    moves: tuple[Move, ...] = ()
    moments: tuple[Moment, ...] = ()
    over: tuple[str, ...] = ()
    remark: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        """The plan as it stands in a file."""
        lines = [f"plan {json.dumps(self.graph)} for {self.identity}"]
        lines += [f"# {self.remark}"] if self.remark else []
        lines += [f"mode {self.mode.value}"]
        lines += [f"bucket {' '.join(bucket)}" for bucket in self.buckets]
        lines += [move.text for move in self.moves]
        lines += [moment.text for moment in self.moments]
        rows = range(0, len(self.over), NAMES_A_LINE)
        lines += [f"over {' '.join(self.over[first : first + NAMES_A_LINE])}" for first in rows]
        return "\n".join(lines) + "\n"


def read_plans(path: str) -> Mapping[str, WrittenPlan]:
    """The plans of a file, by the identity of their graphs; OptionError where it cannot be read."""
    return {plan.identity: plan for plan in parse_plans(plan_text(path), path)}


def plan_text(path: str) -> str:
    """What stands in a file of plans."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"the plan cannot be read: {error}", where=path, next_step="write one with `counterpoint opt --write-plan`"
        ) from error


def parse_plans(text: str, where: str = "plan") -> Iterator[WrittenPlan]:
    """The plans of a text, one after the other."""
    sections: list[list[tuple[int, str]]] = []
    for number, written in enumerate(text.splitlines(), 1):
        line = written.partition("#")[0].strip()
        if line.startswith("plan "):
            sections.append([])
        if line and not sections:
            raise _unreadable(line, f"{where}:{number}")
        if line:
            sections[-1].append((number, line))
    for section in sections:
        yield _Section(where).read(section)


class _Section:
    """Reads the lines of one plan."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.mode = BucketMode.FUNCTIONAL
        self.buckets: list[tuple[str, ...]] = []
        self.moves: list[Move] = []
        self.moments: list[Moment] = []
        self.over: list[str] = []

    def read(self, lines: Sequence[tuple[int, str]]) -> WrittenPlan:
        (number, first), *rest = lines
        head = _HEAD.fullmatch(first)
        if head is None:
            raise _unreadable(first, f"{self.where}:{number}")
        for number, line in rest:
            if not self._take(line):
                raise _unreadable(line, f"{self.where}:{number}")
        return WrittenPlan(
            graph=json.loads(head[1]),
            identity=head[2],
            mode=self.mode,
            buckets=tuple(self.buckets),
            moves=tuple(self.moves),
            moments=tuple(self.moments),
            over=tuple(self.over),
        )

    def _take(self, line: str) -> bool:
        word, *names = line.split()
        if word == "mode" and len(names) == 1 and names[0] in {mode.value for mode in BucketMode}:
            self.mode = BucketMode(names[0])
        elif word == "bucket" and len(names) > 1:
            self.buckets.append(tuple(names))
        elif word == "over" and names:
            self.over += names
        elif (moved := _MOVE.fullmatch(line)) is not None:
            self.moves.append(Move(tuple(moved[1].split()), moved[2]))
        else:
            return self._take_moment(line)
        return True

    def _take_moment(self, line: str) -> bool:
        found = _STEP.fullmatch(line)
        if found is None:
            return False
        parts: dict[str, tuple[str, ...]] = {}
        for part in found[2].split(";"):
            word, *names = part.split() or [""]
            if word not in _PARTS or not names or _PARTS[word] in parts:
                return False
            parts[_PARTS[word]] = tuple(names)
        self.moments.append(Moment(found[1], **parts))
        return True


def _unreadable(line: str, where: str) -> OptionError:
    return OptionError(
        f"this is no line of a plan: {line!r}", where=where, next_step="see counterpoint.passes.overlapping.written"
    )
