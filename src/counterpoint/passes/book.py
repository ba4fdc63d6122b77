"""The open ledger: passes write their verdicts into it while the pipeline runs; closing it gives the `Ledger`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch.fx import Graph, Node

from counterpoint._torch import OpOverload
from counterpoint.errors import GraphError, PassError
from counterpoint.ir import effects, ops
from counterpoint.ir.collective import Collective, read_collective
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.provenance import ORIGIN, module_of, source_of
from counterpoint.ir.provenance import origins_of as origins_of
from counterpoint.ir.reason import REASONS, Refusal
from counterpoint.passes.ledger import Entry, Facts, Ledger, Verdict, VerdictKind

Mark = Mapping[str, tuple[Verdict, ...]]


def carrying(*replaced: Node) -> dict[str, Any]:
    """Metadata for a node that does the work of these collectives: `tx.call(..., meta=carrying(*old))`."""
    return {ORIGIN: tuple(dict.fromkeys(origin for node in replaced for origin in origins_of(node)))}


class _Line(NamedTuple):
    facts: Facts
    refusal: Refusal | None
    """Why the collective cannot be read; passes never see it then."""


@dataclass(frozen=True)
class LedgerBook:
    """What the collectives are, and what passes have said about them so far."""

    lines: Mapping[str, _Line]
    verdicts: dict[str, tuple[Verdict, ...]]
    nodes: Mapping[str, Node] = field(default_factory=dict)
    """Of the input graph, by name."""

    @staticmethod
    def open(graph: Graph, name: str = "graph", groups: GroupTable | None = None) -> LedgerBook:
        """Take down every collective of the graph, and mark each start with its origin."""
        lines: dict[str, _Line] = {}
        counts: dict[str, int] = {}
        groups = groups or GroupTable()
        for node in graph.nodes:
            if not may_communicate(node):
                _mark(node, ())
                continue
            read = _read(node)
            kind = read.kind.value if isinstance(read, Collective) else _kind_of(node)
            number = counts[kind] = counts.get(kind, -1) + 1
            origin = f"{name}/{kind}#{number}"
            refusal = read if isinstance(read, Refusal) else None
            lines[origin] = _Line(_facts(origin, kind, node, read, groups), refusal)
            _mark(node, (origin,))
        return LedgerBook(lines, {}, {node.name: node for node in graph.nodes})

    def page(self, by: str) -> PassPage:
        """Where the pass with this text form writes."""
        return PassPage(self, by)

    def mark(self) -> Mark:
        """What has been said so far, to come back to with `rewind`."""
        return dict(self.verdicts)

    def rewind(self, mark: Mark) -> None:
        """Forget what was said after the mark."""
        self.verdicts.clear()
        self.verdicts.update(mark)

    def blame(self, by: str) -> None:
        """A pass failed and was undone: that is why what nobody else has spoken about is left alone."""
        for origin, line in self.lines.items():
            if not self.verdicts.get(origin) and line.refusal is None:
                self.verdicts[origin] = (verdict_of(Refusal("pass-failed", line.facts.node, by), by=by),)

    def unaccounted(self, graph: Graph) -> tuple[Facts, ...]:
        """Collectives whose work no node of the graph does, though no verdict says that another does it for them."""
        carried = {origin for node in graph.nodes for origin in origins_of(node)}
        gone = (line.facts for origin, line in self.lines.items() if origin not in carried)
        return tuple(facts for facts in gone if _final(self.verdicts.get(facts.origin, ())) not in _MAY_VANISH)

    def strangers(self, graph: Graph) -> tuple[Node, ...]:
        """Collectives of the graph that do the work of none of the input graph."""
        return tuple(node for node in graph.nodes if may_communicate(node) and not origins_of(node))

    def close(self, default: Refusal | None = None) -> Ledger:
        """The ledger: what nobody spoke about was left alone, by default because no pass handles it."""
        # Taken down when the ledger was opened: a collective's neighbours, which tell where it comes from, may be gone.
        places = {line.facts.node: line.facts.source for line in self.lines.values()}
        return Ledger(tuple(self._entry(origin, line, default, places) for origin, line in self.lines.items()))

    def _entry(self, origin: str, line: _Line, default: Refusal | None, places: Mapping[str, str]) -> Entry:
        said = self.verdicts.get(origin, ())
        if not said:
            refusal = line.refusal or default or Refusal("no-pass", line.facts.node)
            said = (verdict_of(refusal, by=""),)
        said = tuple(self._placed(verdict, places) for verdict in said)
        return Entry(facts=line.facts, verdict=final(said), history=said)

    def _placed(self, verdict: Verdict, places: Mapping[str, str]) -> Verdict:
        """The verdict with the user's line of the node in the way, where the pass that refused gave only its name."""
        if not verdict.blocking or verdict.blocking_source:
            return verdict
        node = self.nodes.get(verdict.blocking)
        source = places.get(verdict.blocking) or (source_of(node) if node is not None else "")
        return replace(verdict, blocking_source=source) if source else verdict


# The work of these is done by another collective, so no node needs to carry them.
_MAY_VANISH = frozenset({VerdictKind.DEDUPLICATED})


@dataclass(frozen=True)
class PassPage:
    """One pass's page of the ledger. Every collective gets at most one verdict of each pass."""

    book: LedgerBook
    by: str
    notes: list[str] = field(default_factory=list)
    """What else a reader of the report should know."""
    plans: list[str] = field(default_factory=list)
    """What the pass has decided, as text that it can be given back."""

    def fused(self, nodes: Node | Iterable[Node | str], into: str) -> None:
        """The collectives became part of one operator."""
        self._say(nodes, VerdictKind.FUSED, into)

    def bucketed(self, nodes: Node | Iterable[Node | str], into: str) -> None:
        """The collectives were merged into one collective."""
        self._say(nodes, VerdictKind.BUCKETED, into)

    def pipelined(self, nodes: Node | Iterable[Node | str], with_: str) -> None:
        """The collectives run in pieces, alternating with the work of a compute node."""
        self._say(nodes, VerdictKind.PIPELINED, with_)

    def lowered(
        self,
        nodes: Node | Iterable[Node | str],
        to: str,
        *,
        before_us: float | None = None,
        after_us: float | None = None,
    ) -> None:
        """The collectives were given another form or algorithm; what the program waits for them, before and after."""
        verdict = Verdict(kind=VerdictKind.LOWERED, by=self.by, partner=to, before_us=before_us, after_us=after_us)
        self._write(nodes, verdict)

    def hidden(self, nodes: Node | Iterable[Node | str], behind: str) -> None:
        """The collectives run while the compute stream is busy with something else."""
        self._say(nodes, VerdictKind.HIDDEN, behind)

    def deduplicated(self, nodes: Node | Iterable[Node | str], into: str) -> None:
        """The collectives computed what another one computes, and are gone."""
        self._say(nodes, VerdictKind.DEDUPLICATED, into)

    def left_alone(self, nodes: Node | Iterable[Node | str], why: Refusal, blocking: Node | None = None) -> None:
        """The collectives stay as they are, for a reason."""
        source = source_of(blocking) if blocking is not None else ""
        self._write(nodes, verdict_of(why, by=self.by, source=source))

    def _say(self, nodes: Node | Iterable[Node | str], kind: VerdictKind, partner: str) -> None:
        self._write(nodes, Verdict(kind=kind, by=self.by, partner=partner))

    def _write(self, nodes: Node | Iterable[Node | str], verdict: Verdict) -> None:
        for origin in dict.fromkeys(self._origins(nodes)):
            said = self.book.verdicts.get(origin, ())
            if said and said[-1].by == self.by and said[-1] != verdict:
                raise PassError(
                    f"the pass gave {origin} two verdicts, {said[-1]} and {verdict}",
                    where=f"pass {self.by}",
                    next_step="a pass speaks once about each collective: decide first, then tell the ledger",
                )
            if verdict not in said[-1:]:
                self.book.verdicts[origin] = (*said, verdict)

    def _origins(self, nodes: Node | Iterable[Node | str]) -> Iterator[str]:
        for item in [nodes] if isinstance(nodes, Node) else nodes:
            origins = origins_of(item) if isinstance(item, Node) else (item,)
            unknown = [origin for origin in origins if origin not in self.book.lines]
            if unknown or not origins:
                raise PassError(
                    f"{unknown[0] if unknown else item} is no collective of the input graph",
                    where=f"pass {self.by}",
                    next_step="speak about the start, and emit starts with meta=carrying(*old)",
                )
            yield from origins


def final(said: tuple[Verdict, ...]) -> Verdict:
    """The verdict that counts: the last that tells of a rewrite, or else the reason that tells most, the last of these.

    So a bucketed collective that is lowered afterwards counts as lowered, and one that a later pass could not handle
    still counts as bucketed; the history keeps all. A reason of a pass that had something to do with the collective
    counts before one of a pass to which it is nothing, and this before why it kept its form.
    """
    done = [verdict for verdict in said if verdict.kind is not VerdictKind.LEFT_ALONE]
    told = [verdict for verdict in said if verdict.code not in FORM_KEPT]
    concerned = [verdict for verdict in told if verdict.code not in NOTHING_FOR_IT]
    return (done or concerned or told or list(said))[-1]


NOTHING_FOR_IT = frozenset({"no-partner", "no-matmul", "no-product", "not-a-gradient"})
"""Reasons of passes that are not about such a collective, or in this graph have nothing to put it together with."""

FORM_KEPT = frozenset(
    {"not-probed", "no-other-form", "other-form-lacking", "library-best", "lowered-already", "other-device"}
)
"""Reasons why a collective is left in the form that it has."""


def _final(said: tuple[Verdict, ...]) -> VerdictKind | None:
    return final(said).kind if said else None


def verdict_of(refusal: Refusal, *, by: str, source: str = "") -> Verdict:
    """The verdict `left-alone` for a reason."""
    return Verdict(
        kind=VerdictKind.LEFT_ALONE,
        by=by,
        code=refusal.code,
        blocking=refusal.node,
        blocking_source=source,
        detail=refusal.detail,
        hint=refusal.hint or REASONS[refusal.code].hint,
    )


def may_communicate(node: Node) -> bool:
    """Whether the node starts a collective that we know, or calls a communication library in a way that we do not."""
    if ops.is_collective(node):
        return True
    return (
        getattr(node.target, "namespace", None) in ops.COMMUNICATING_NAMESPACES
        and effects.effect_of(node) is effects.Effect.BARRIER
    )


def _mark(node: Node, origins: tuple[str, ...]) -> None:
    """Set the origins that a node carries, in a dictionary of its own: graphs that share nodes' metadata exist."""
    if origins_of(node) != origins:
        rest = {key: value for key, value in node.meta.items() if key != ORIGIN}
        node.meta = {**rest, ORIGIN: origins} if origins else rest


def _read(node: Node) -> Collective | Refusal:
    try:
        return read_collective(node)
    except GraphError as error:
        return Refusal("malformed", node.name, error.what)


def _kind_of(node: Node) -> str:
    spec = ops.spec_of(node.target)
    return spec.kind.value if spec is not None else "unknown"


def _facts(origin: str, kind: str, node: Node, read: Collective | Refusal, groups: GroupTable) -> Facts:
    facts: dict[str, Any] = {
        "origin": origin,
        "kind": kind,
        "operator": node.target.name() if isinstance(node.target, OpOverload) else str(node.target),
        "node": node.name,
        "source": source_of(node),
        "module": module_of(node),
    }
    if isinstance(read, Collective):
        nbytes = read.sent.nbytes
        facts |= {
            "group": str(read.group),
            "group_size": read.group.size or _size_of(read.group.name, groups),
            "reduce_op": read.reduce_op,
            "dtypes": tuple(str(dtype).removeprefix("torch.") for dtype in read.sent.dtypes),
            "shapes": tuple("x".join(map(str, shape)) or "scalar" for shape in read.sent.shapes),
            "nbytes": nbytes if isinstance(nbytes, int) else None,
        }
    return Facts(**facts)


def _size_of(group: str | None, groups: GroupTable) -> int | None:
    return len(groups[group]) if group is not None and group in groups else None
