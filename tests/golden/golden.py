"""Golden cases: one text file each, with a pipeline, the graph before it and everything that comes of running it.

    # What the case claims.
    passes: merge-all-reduces{cap=2}
    group "dp": 0..1
    expect: fires

    == before ==
    graph
      %x: f32[4] = placeholder
      ...

    == after ==      the graph, or the word `unchanged`
    == edits ==      by pass
    == verdicts ==   one line a collective
    == notes ==      what the verifier could not prove, where there is such a thing

`needs:` names what a machine or torch may lack (`tests/support/toolchain.py`); the case is then skipped.

A case says `expect: fires` or `expect: refuses`; it fails when nothing fired where something should, and the reverse,
also while recording. `options:` may set compile options; without it the run is verified at the level paranoid, so a
recorded graph has computed the same values as the one before. The text behind `before` is all that a new case needs:
run the tests with COUNTERPOINT_RECORD=1 to have the rest written, and read what was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from counterpoint.capture.graph import CapturedGraph
from counterpoint.capture.ranks import ranks_of, ranks_text
from counterpoint.cli.opt import optimise
from counterpoint.ir.text import parse_graph, print_graph
from counterpoint.options import CompileOptions
from counterpoint.passes.ledger import VerdictKind
from counterpoint.passes.registry import Registry
from counterpoint.passes.report import PassStatus, PipelineReport
from counterpoint.report.run_text import counts_text

_HEADER = re.compile(r'(passes|options|expect|needs|group "((?:[^"\\]|\\.)*)"): ?(.*)')
FIRES, REFUSES = "fires", "refuses"


class CaseError(Exception):
    """A golden case is not written as it should be, or claims what is not so."""


@dataclass(frozen=True)
class Case:
    """What a file asks for."""

    claim: str
    passes: str
    options: str
    expect: str
    needs: str
    groups: dict[str, tuple[int, ...]]
    before: str

    @staticmethod
    def parse(text: str) -> Case:
        """Read the part of a file that a person writes."""
        head, _, rest = text.partition("== before ==\n")
        before = re.split(r"^== \w+ ==$", rest, maxsplit=1, flags=re.MULTILINE)[0].strip("\n")
        lines = [line for line in head.splitlines() if line]
        claim = [line.removeprefix("# ") for line in lines if line.startswith("#")]
        fields, groups = _fields(line for line in lines if not line.startswith("#"))
        if not claim or not before or fields.get("expect") not in (FIRES, REFUSES):
            raise CaseError("a case has a `# claim`, `expect: fires` or `expect: refuses`, and a graph `== before ==`")
        return Case(
            claim="\n".join(claim),
            passes=fields.get("passes", ""),
            options=fields.get("options", ""),
            expect=fields["expect"],
            needs=fields.get("needs", ""),
            groups=groups,
            before=before,
        )

    def captured(self) -> CapturedGraph:
        """The graph as a captured one of rank 0."""
        world = 1 + max((rank for ranks in self.groups.values() for rank in ranks), default=0)
        gm = parse_graph(self.before)
        return CapturedGraph(gm, name="case", role="forward", world_size=world, groups=self.groups)

    def run(self, registry: Registry) -> str:
        """Run the case and give the whole text of its file as it should be."""
        options = {"verify": "paranoid", **_options(self.options), "passes": self.passes}
        captured = self.captured()
        before = print_graph(captured.gm)
        (report,) = optimise([captured], CompileOptions.from_mapping(options), registry)
        after = print_graph(captured.gm)
        self._check_claim(report, before == after)
        return "\n".join([*self._head(), before, *self._outcome(report, before, after)])

    def _check_claim(self, report: PipelineReport, unchanged: bool) -> None:
        edits = sum(sum(record.edits.values()) for record in report.passes)
        failed = [record.problem for record in report.passes if record.status is not PassStatus.DONE]
        if report.input_problem or failed:
            raise CaseError("\n".join([report.input_problem, *failed]))
        if self.expect == FIRES and (not edits or unchanged):
            raise CaseError("the case expects the pipeline to fire, but it changed nothing")
        touched = [e.facts.origin for e in report.ledger if e.verdict.kind is not VerdictKind.LEFT_ALONE]
        if self.expect == REFUSES and (edits or touched or not unchanged):
            raise CaseError(f"the case expects the pipeline to refuse, but it made {edits} edits: {', '.join(touched)}")

    def _head(self) -> Iterator[str]:
        yield from (f"# {line}" for line in self.claim.splitlines())
        yield f"passes: {self.passes}"
        if self.options:
            yield f"options: {self.options}"
        if self.needs:
            yield f"needs: {self.needs}"
        yield from (f"group {json.dumps(name)}: {ranks_text(ranks)}" for name, ranks in self.groups.items())
        yield from (f"expect: {self.expect}", "", "== before ==")

    @staticmethod
    def _outcome(report: PipelineReport, before: str, after: str) -> Iterator[str]:
        yield "== after =="
        yield "unchanged\n" if before == after else after
        yield "== edits =="
        yield from (f"{record.text}: {counts_text(record.edits) or 'none'}" for record in report.passes)
        yield "\n== verdicts =="
        yield from (f"{entry.facts.origin}: {entry.verdict}" for entry in report.ledger)
        if report.notes:
            yield "\n== notes =="
            yield from report.notes
        yield ""


def _fields(lines: Iterator[str]) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
    fields: dict[str, str] = {}
    groups: dict[str, tuple[int, ...]] = {}
    for line in lines:
        found = _HEADER.fullmatch(line)
        ranks = ranks_of(found[3]) if found is not None and found[2] is not None else ()
        if found is None or ranks is None:
            raise CaseError(f"cannot read the line {line!r}")
        if found[2] is not None:
            groups[json.loads(f'"{found[2]}"')] = ranks
        else:
            fields[found[1]] = found[3]
    return fields, groups


def _options(text: str) -> dict[str, object]:
    written = CompileOptions.parse(text)
    given = {part.split("=")[0].replace("-", "_") for part in text.split()}
    return {name: getattr(written, name) for name in given}


def cases(folder: Path) -> list[Path]:
    """The files of a folder and those below it, in order."""
    return sorted(folder.rglob("*.txt"))
