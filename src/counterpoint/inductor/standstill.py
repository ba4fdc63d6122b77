"""A compiled graph whose collective fails says which one it was, whose work it does, and which rank is missing.

Nothing is kept while graphs run well. When a call raises, the traceback leads to the line of generated code that
started or awaited a collective; from there to the collective of the graph, and to the ledger, it is reading.
"""

from __future__ import annotations

import functools
import linecache
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from counterpoint._torch import group_sequence
from counterpoint.errors import CommunicationError, SharedMemoryError
from counterpoint.ir import ops
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.launches import UNEQUAL_KINDS, Launch
from counterpoint.ir.ops import Kind
from counterpoint.passes.ledger import Entry, VerdictKind
from counterpoint.report.history import CompileRecord
from counterpoint.runtime.pretend import pretends
from counterpoint.runtime.roll_call import Standing, call_roll

FAILURES = (RuntimeError, CommunicationError, SharedMemoryError)
"""What torch's collectives and ours raise."""
SHOWN = 3
"""Members of a bucket that a message names."""

_TOGETHER = frozenset({VerdictKind.BUCKETED, VerdictKind.FUSED})
_CALL = re.compile(r"(?:\b(?P<result>\w+)\s*=\s*)?torch\.ops\.(?P<space>\w+)\.(?P<name>\w+)\.\w+\((?P<arguments>.*)")
_ASSIGNED = re.compile(r"^\s*(?P<to>\w+)\s*=\s*(?P<of>\w+)\b(?!\()")
_PLACE = re.compile(r"^\[[^\]]*\.\w+:\d+\]\s*")
"""The file of the backend's own source that its messages begin with."""
_GROUP = re.compile(r"'([^']*)'")


@dataclass(frozen=True)
class _Written:
    """A call of a communicating operator in generated code."""

    kind: Kind
    result: str
    arguments: str
    in_place: bool

    @staticmethod
    def read(line: str) -> _Written | None:
        found = _CALL.search(line)
        # Generated code calls forms of ours that return nothing.
        name = found["name"].removesuffix("void") if found else ""
        operator = getattr(getattr(torch.ops, found["space"], None), name, None) if found else None
        spec = ops.spec_of(getattr(operator, "default", None)) if operator is not None else None
        if found is None or spec is None:
            return None
        in_place = spec.form is not ops.Form.FUNCTIONAL
        return _Written(spec.kind, found["result"] or "", found["arguments"], in_place)

    @property
    def group(self) -> str:
        """The name of the group, the last text among the arguments."""
        return str((_GROUP.findall(self.arguments) or [""])[-1])

    def makes(self, variable: str) -> bool:
        """Whether the result is this variable."""
        return self.result == variable or (self.in_place and bool(re.search(rf"\b{variable}\b", self.arguments)))


def watched(
    call: Callable[..., Any], record: CompileRecord, launches: Sequence[Launch], groups: GroupTable
) -> Callable[..., Any]:
    """The call of a compiled graph, whose failures name the collective and who is missing."""
    real = [launch for launch in launches if launch.group in groups and len(groups[launch.group]) > 1]
    if not real or pretends():
        return call

    @functools.wraps(call, updated=())
    def watching(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except FAILURES as error:
            launch = launch_in_flight(error, launches)
            if launch is None:
                raise
            raise _explained(error, launch, record, groups) from error

    return watching


def launch_in_flight(error: BaseException, launches: Sequence[Launch]) -> Launch | None:
    """The collective that the line which raised has started or waited for; None where it is another line."""
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if _Written.read(linecache.getline(file, number)) is not None:
            return _launch_at(linecache.getlines(file)[:number], launches)
    return None


def _launch_at(lines: Sequence[str], launches: Sequence[Launch]) -> Launch | None:
    """The collective that the last of these lines is about.

    Without code generation variables are called like nodes. Inductor's are not, but it starts the collectives of a
    group in the order of the graph: the third all-reduce of its code is the third of the graph.
    """
    last = _Written.read(lines[-1])
    if last is None:
        return None
    start, written = len(lines) - 1, last
    if last.kind is Kind.WAIT:
        found = _start_of(lines[:-1], last.arguments)
        if found is None:
            return None
        start, written = found
    by_node = next((launch for launch in launches if launch.node == written.result), None)
    return by_node or _numbered(lines[:start], written, launches)


def _numbered(before: Sequence[str], written: _Written, launches: Sequence[Launch]) -> Launch | None:
    """The collective of the graph that has so many of its kind before it."""
    like = (written.kind, written.group)
    number = sum((one.kind, one.group) == like for one in filter(None, map(_Written.read, before)))
    alike = [launch for launch in launches if (launch.kind, launch.group) == (written.kind.value, written.group)]
    return alike[number] if number < len(alike) else None


def _start_of(lines: Sequence[str], waited: str) -> tuple[int, _Written] | None:
    """Where what is waited for was started: its number among the lines, and the call."""
    name = re.match(r"\s*(?:tensor\s*=\s*)?(\w+)", waited)
    if name is None:
        return None
    variable = name[1]
    for number in range(len(lines) - 1, -1, -1):
        written = _Written.read(lines[number])
        if written is not None:
            if written.kind not in UNEQUAL_KINDS and written.makes(variable):
                return number, written
            continue
        assigned = _ASSIGNED.match(lines[number])
        if assigned and assigned["to"] == variable:
            # A part of a coalesced result, or a buffer under another name.
            variable = assigned["of"]
    return None


def _explained(
    error: BaseException, launch: Launch, record: CompileRecord, groups: GroupTable
) -> CommunicationError | SharedMemoryError:
    entries = [entry for ledger in record.ledgers for entry in ledger if entry.facts.origin in launch.origins]
    own = Standing(
        graph=record.graph,
        collective=str(launch),
        node=launch.node,
        work=_work(entries),
        sequence=group_sequence(launch.group),
    )
    roll = call_roll(c10d._get_default_store(), groups[launch.group], dist.get_rank(), own)
    kind = SharedMemoryError if isinstance(error, SharedMemoryError) else CommunicationError
    return kind(
        f"{roll.what}. The backend says: {_first_line(error)}",
        where=f"graph {record.graph}, node {launch.node}, group of ranks {list(groups[launch.group])}",
        next_step=roll.next_step,
    )


def _work(entries: Sequence[Entry]) -> str:
    """`all_reduce bucket 0 of 2: forward/all_reduce#0 at model.py:12 in forward, ...`."""
    # A bucket may have been given another form since.
    said = [verdict for entry in entries for verdict in entry.history if verdict.kind in _TOGETHER]
    bucket = said[-1].partner if said else ""
    named = ", ".join(f"{e.facts.origin}{f' at {e.facts.source}' if e.facts.source else ''}" for e in entries[:SHOWN])
    more = f" and {len(entries) - SHOWN} more" if len(entries) > SHOWN else ""
    return f"{bucket}{': ' if bucket and named else ''}{named}{more}"


def _first_line(error: BaseException) -> str:
    lines = (_PLACE.sub("", line.strip()) for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)
