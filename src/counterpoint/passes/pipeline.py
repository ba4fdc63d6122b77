"""Running passes one after the other: contracts first, verification after each, a failed one taken back entirely."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch.fx import Graph, GraphModule

from counterpoint.cost.capabilities import CapabilityTable
from counterpoint.cost.model import CostModel
from counterpoint.errors import CounterpointError, PassError
from counterpoint.ir import ops
from counterpoint.ir.collection import without_collection
from counterpoint.ir.edit import GraphEditor
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.reason import Refusal
from counterpoint.options import CompileOptions
from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.book import LedgerBook, PassPage
from counterpoint.passes.checker import Checker
from counterpoint.passes.contract import check_contracts, provided_by
from counterpoint.passes.registry import REGISTRY, Registry
from counterpoint.passes.report import PassRecord, PassStatus, PipelineReport
from counterpoint.passes.restore import SavedGraph

LOGGER = logging.getLogger("counterpoint.passes")
_STEP = re.compile(r'\s*([A-Za-z][\w-]*)\s*(?:\{((?:"(?:[^"\\]|\\.)*"|[^"{}])*)\})?\s*(,|$)')

_FIRST = "dedup-collectives,micro-pipeline-tp,fuse-ddp{method=custom}"
_LAST = "lower-collectives{in-place=false devices=cpu}"
DEFAULT_PIPELINE = (
    f"{_FIRST},bucket-all-gather{{mode=custom}},bucket-reduce-scatter{{mode=custom}},"
    f"bucket-all-reduce{{mode=custom}},bucket-all-to-all{{mode=custom}},schedule-waits,{_LAST}"
)
"""What runs when nobody asks for anything else: collectives that matmuls can hide are taken to pieces where that pays,
then gradients are fused, with their arithmetic, then whatever else is alike. What is left gets the best form where
tensors lie on the CPU; other forms on GPUs have not been measured on several of them.

Packed by operators of ours: code generation then takes no longer than for the graph as it was, where bodies of torch's
own operators make it take half as long again for 12 parameters, and several times as long for 160.
"""

INFORMED_PIPELINE = f"{_FIRST},schedule-overlap{{mode=custom}},{_LAST}"
"""The same where a topology or a table of measured times is given: buckets and order are then decided together. What
there is stays where the costs find nothing better; without such costs they would be guesses."""

LOWERING = "lower-collectives"
"""The pass that the option `lower` switches off."""


@dataclass(frozen=True)
class Pipeline:
    """Passes in order, with a text form: `bucket-all-gather{cap-mb=25},verify-graph`."""

    passes: tuple[Pass, ...] = ()

    @staticmethod
    def parse(text: str, registry: Registry = REGISTRY) -> Pipeline:
        """The pipeline of a text; PassError where it cannot be read, OptionError for an option that a pass lacks."""
        passes: list[Pass] = []
        position, more = 0, bool(text.strip())
        while more:
            found = _STEP.match(text, position)
            if found is None:
                raise PassError(
                    f"cannot read {text[position:].strip() or 'what follows the last comma'!r}",
                    where=f"pipeline {text!r}",
                    next_step="write passes as name or name{option=value option=value}, separated by commas",
                )
            passes.append(registry.find(found[1]).from_text(found[2] or ""))
            position, more = found.end(), bool(found[3])
        return Pipeline(tuple(passes))

    @staticmethod
    def of(options: CompileOptions, registry: Registry = REGISTRY) -> Pipeline:
        """The pipeline that the options ask for."""
        informed = options.topology is not None or options.cost_table is not None
        default = INFORMED_PIPELINE if informed else DEFAULT_PIPELINE
        whole = Pipeline.parse(default if options.passes is None else options.passes, registry)
        return whole if options.lower else Pipeline(tuple(item for item in whole.passes if item.name != LOWERING))

    @property
    def text(self) -> str:
        """The canonical text form."""
        return ",".join(item.text for item in self.passes)

    def check(self, given: Iterable[str] = (), registry: Registry = REGISTRY) -> None:
        """Raise ContractError unless the passes fit together on a graph of which `given` holds, and OptionError
        where one cannot read what it is to read."""
        check_contracts(self.passes, given=given, known=registry)
        for item in self.passes:
            item.given()

    def __str__(self) -> str:
        return self.text

    def __len__(self) -> int:
        return len(self.passes)


def run_pipeline(
    gm: GraphModule,
    pipeline: Pipeline,
    *,
    options: CompileOptions | None = None,
    groups: GroupTable | None = None,
    name: str = "graph",
    given: Iterable[str] = (),
    topology: Any = None,
    cost_model: CostModel | None = None,
    capabilities: CapabilityTable | None = None,
    recompile: bool = True,
) -> PipelineReport:
    """Run the passes on the graph module, in place, and account for every collective in it.

    recompile: make the module run its new graph; not needed where the caller does so anyway, or only reads the graph.

    A pass that raises, leaves an invalid graph, or loses a collective without a verdict is undone entirely; the others
    go on, unless `on_error="raise"`. An invalid input graph is left as it is.
    """
    pipeline.check(given)
    options, groups = options or CompileOptions(), groups or GroupTable()
    run = _Run(gm, options, groups, name, topology, cost_model, capabilities, frozenset(given))
    with without_collection():
        report = run.all(pipeline)
        if recompile and any(record.status is PassStatus.DONE for record in report.passes):
            gm.recompile()
    return report


@dataclass
class _Run:
    """The state of one run."""

    gm: GraphModule
    options: CompileOptions
    groups: GroupTable
    name: str
    topology: Any
    cost_model: CostModel | None
    capabilities: CapabilityTable | None
    standing: frozenset[str]
    """Facts provided so far."""
    permitted: frozenset[str] = field(default=frozenset(), init=False)
    """Findings that passes so far were allowed to cause."""
    notes: list[str] = field(default_factory=list, init=False)
    """What passes had to say beside their verdicts."""
    default: Refusal | None = field(default=None, init=False)
    """Why collectives that nobody spoke about are left alone, when it is not for want of a pass."""

    def all(self, pipeline: Pipeline) -> PipelineReport:
        """Run everything and close the ledger."""
        began = time.perf_counter()
        self.book = LedgerBook.open(self.gm.graph, self.name, self.groups)
        before = count_collectives(self.gm.graph)
        self.checker = Checker(self.gm, self.groups, self.options)
        problem = self._check_input()
        records = tuple(self._logged(self._one(item, problem)) for item in pipeline.passes)
        return PipelineReport(
            graph=self.name,
            pipeline=pipeline.text,
            options=self.options.text(),
            passes=records,
            ledger=self.book.close(self.default),
            collectives_before=before,
            collectives_after=count_collectives(self.gm.graph),
            seconds=time.perf_counter() - began,
            input_problem=problem,
            notes=(*self.checker.notes, *self.notes),
        )

    def _logged(self, record: PassRecord) -> PassRecord:
        changed = f"collectives {record.collectives_before} to {record.collectives_after}"
        LOGGER.info(
            "%s: %s %s in %.1f ms, %s", self.name, record.text, record.status.value, 1e3 * record.seconds, changed
        )
        LOGGER.debug("%s: %s edits %s, operators %s", self.name, record.text, record.edits, record.operators)
        return record

    def _check_input(self) -> str:
        try:
            self.checker.check_input()
        except CounterpointError as error:
            if self.options.on_error == "raise":
                raise
            self.default = Refusal("invalid-graph", self.name, error.what.partition("\n")[0])
            return str(error)
        return ""

    def _one(self, item: Pass, input_problem: str) -> PassRecord:
        graph = self.gm.graph
        missing = item.contract.requires - self.standing
        if input_problem or missing:
            why = "the input graph does not verify" if input_problem else _unmet(missing)
            return PassRecord(text=item.text, status=PassStatus.SKIPPED, problem=why)
        before, operators, began = count_collectives(graph), count_operators(graph), time.perf_counter()
        saved, mark = SavedGraph(self.gm), self.book.mark()
        editor, page = GraphEditor(graph, self.groups), self.book.page(item.text)
        try:
            started = time.perf_counter()
            item.run(self._context(page, editor))
            ran = time.perf_counter()
            self.checker.check_after(item.text, self.book, self.permitted | item.contract.permits)
        except Exception as error:
            saved.restore()
            self.book.rewind(mark)
            self.book.blame(item.text)
            if self.options.on_error == "raise":
                raise _as_pass_error(item, error) from error
            return PassRecord(
                text=item.text,
                status=PassStatus.FAILED,
                problem=str(_as_pass_error(item, error)),
                seconds=time.perf_counter() - began,
                collectives_before=before,
                collectives_after=before,
            )
        self.notes += (f"{item.text}: {note}" for note in page.notes)
        self.standing |= provided_by(item)
        self.permitted |= item.contract.permits
        return PassRecord(
            text=item.text,
            status=PassStatus.DONE,
            seconds=ran - started,
            verify_seconds=time.perf_counter() - ran,
            edits=asdict(editor.counts),
            operators=_difference(operators, count_operators(graph)),
            collectives_before=before,
            collectives_after=count_collectives(graph),
            plan="\n".join(page.plans),
        )

    def _context(self, page: PassPage, editor: GraphEditor) -> PassContext:
        return PassContext(
            gm=self.gm,
            editor=editor,
            options=self.options,
            groups=self.groups,
            name=self.name,
            ledger=page,
            topology=self.topology,
            cost_model=self.cost_model,
            capabilities=self.capabilities,
        )


def _unmet(missing: frozenset[str]) -> str:
    return f"it requires {', '.join(sorted(missing))}, and the pass that was to provide that has failed"


def _as_pass_error(item: Pass, error: Exception) -> CounterpointError:
    if isinstance(error, CounterpointError):
        return error
    return PassError(
        f"the pass failed with {type(error).__name__}: {error}",
        where=f"pass {item.text}",
        next_step="report it with the graph (counterpoint opt --debug shows where it failed), or leave the pass out",
    )


def count_collectives(graph: Graph) -> int:
    """How many collectives the graph starts."""
    return sum(ops.is_collective(node) for node in graph.nodes)


def count_operators(graph: Graph) -> Counter[str]:
    """Calls by operator."""
    targets = [node.target for node in graph.nodes if node.op not in ("placeholder", "output")]
    # By identity, as operators are slow to hash and to name.
    named = {id(target): target for target in targets}
    found: Counter[str] = Counter()
    for key, count in Counter(map(id, targets)).items():
        found[str(named[key])] += count
    return found


def _difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    changed = {name: after.get(name, 0) - before.get(name, 0) for name in sorted({*before, *after})}
    return {name: count for name, count in changed.items() if count}
