"""The verifier: is a graph a valid distributed program, and does it still mean what it meant before a pass?

`verify(graph)` checks a graph by itself: its order, its waits, its buffers in flight, its metadata. With a reference,
taken by `Snapshot.of(graph)` before a pass, it also compares what the two graphs compute. `verify_ranks` compares the
graphs of several ranks.

How graphs are compared
-----------------------
Both graphs are read once, in order, and every value becomes a list of ranges of *terms* (`flat`, `terms`). A term is an
operator applied to terms; equal terms have equal numbers. Operators that only move elements make no term, and the
collective of a packed tensor is read as the packed collectives of its members. So take a bucket of two gradients:

    before                              after
    a1 = wait(all_reduce(a, dp))        p = cat([a.flatten(), b.flatten()])      [a 0:4] [b 0:6]
    b1 = wait(all_reduce(b, dp))        r = wait(all_reduce(p, dp))              [A 0:4] [B 0:6]   A = all_reduce(a, dp)
    return a1 / 8, b1 / 8               s = (r / 8).split([4, 6])                A/8 and B/8
                                        return s[0].view(2, 2), s[1].view(6)

Both return the terms A/8 and B/8, so the rewrite is right: no cost model, no sample data, no pattern of what a bucket
looks like. Had `p` been reduced over another group, the first differing terms would be `all_reduce(tp) of a` and
`all_reduce(dp) of a`, and that is what the finding says.

The rules that make rewrites equal are few: packing commutes with collectives; a constant factor commutes with sums and
moves to the outside; a cast commutes with what only moves data, but not with a reduction; reduce-scatter and all-gather
are an all-reduce; writing into a buffer is the value that the buffer holds afterwards. Everything else must be the same
operator on the same terms. Where two graphs use different operators, the finding is `unproven` and no error: comparing
values on simulated ranks decides. Rounding is outside of this comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch.fx import Graph, GraphModule

from counterpoint.ir import ops
from counterpoint.ir.verify.compare import check_meaning
from counterpoint.ir.verify.finding import HINTS, Finding, at, error_of, report
from counterpoint.ir.verify.flight import check_flight
from counterpoint.ir.verify.meaning import Meaning, graph_of
from counterpoint.ir.verify.order import check_known, check_order
from counterpoint.ir.verify.ranks import verify_ranks
from counterpoint.ir.verify.recompute import check_metadata
from counterpoint.ir.verify.signature import Signature, check_signature
from counterpoint.ir.verify.terms import Terms
from counterpoint.ir.verify.waits import check_waits

__all__ = ["HINTS", "RULES", "Finding", "Rule", "Snapshot", "check", "report", "verify", "verify_ranks"]

Stage = Literal["captured", "bucketed", "scheduled", "lowered"]
Level = Literal["structural", "full"]
Groups = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Snapshot:
    """The reference of a comparison. It relies on no node of the graph it was taken from, which is going to change."""

    signature: Signature
    meaning: Meaning | None
    """None when only structural checks are wanted."""
    known: frozenset[Finding]
    """Findings that the reference had itself and that no pass is to blame for."""
    groups: Groups

    @staticmethod
    def of(graph: Graph | GraphModule, groups: Groups | None = None, *, level: Level = "full") -> Snapshot:
        """Take the reference, before the graph is rewritten."""
        body, table = graph_of(graph), groups or {}
        known = frozenset(verify(body, groups=table, level=level))
        meaning = Meaning.of(body, Terms(), table) if level == "full" else None
        return Snapshot(Signature.of(body), meaning, known, table)


class Subject(NamedTuple):
    """What a rule looks at."""

    graph: Graph
    groups: Groups
    reference: Snapshot | None


@dataclass(frozen=True)
class Rule:
    """One family of checks."""

    name: str
    catches: str
    check: Callable[[Subject], Iterable[Finding]]
    level: Level = "structural"
    """`structural` rules take milliseconds and always run."""
    stages: tuple[Stage, ...] = ("captured", "bucketed", "scheduled", "lowered")
    compares: bool = False
    """Needs a reference."""
    ground: bool = False
    """Later rules rely on it, and do not run when it finds something."""
    needs: str | None = None
    """The name of a rule that must have found nothing."""


def _autograd_forms(subject: Subject) -> Iterator[Finding]:
    for node in subject.graph.nodes:
        spec = ops.spec_of(node.target) if node.op == "call_function" else None
        if spec is not None and spec.name.startswith("_c10d_functional_autograd"):
            yield at("differentiable", node, f"{node.target} has no lowering")


def _signature(subject: Subject) -> Iterator[Finding]:
    return check_signature(subject.graph, subject.reference.signature) if subject.reference else iter(())


def _meaning(subject: Subject) -> Iterator[Finding]:
    reference = subject.reference
    if reference is None or reference.meaning is None:
        return iter(())
    now = Meaning.of(subject.graph, reference.meaning.terms.copy(), subject.groups)
    return check_meaning(subject.graph, reference.meaning, now)


RULES: tuple[Rule, ...] = (
    Rule(
        "order", "cycles; operands that come later, are erased or foreign", lambda s: check_order(s.graph), ground=True
    ),
    Rule("known", "values without metadata", lambda s: check_known(s.graph), ground=True),
    Rule(
        "forms",
        "differentiable forms of collectives after capture",
        _autograd_forms,
        stages=("bucketed", "scheduled", "lowered"),
    ),
    Rule("waits", "no wait, two waits, a wait on something else", lambda s: check_waits(s.graph)),
    Rule("flight", "buffers touched between start and wait", lambda s: check_flight(s.graph)),
    Rule("signature", "changed inputs, outputs, aliasing, mutation", _signature, compares=True),
    Rule(
        "metadata",
        "metadata that operators disagree with",
        lambda s: check_metadata(s.graph, s.groups),
        "full",
    ),
    Rule(
        "meaning",
        "changed group, reduce op, dtype, divisor; collectives dropped, duplicated; values reduced twice, not at all, "
        "handed to the wrong user",
        _meaning,
        "full",
        compares=True,
        needs="metadata",
    ),
)
"""Every check of one graph, in the order in which they run."""


def verify(
    graph: Graph | GraphModule,
    *,
    stage: Stage = "captured",
    reference: Snapshot | None = None,
    groups: Groups | None = None,
    level: Level = "full",
    allow: Collection[str] = (),
) -> tuple[Finding, ...]:
    """Everything that is wrong with a graph, and what could not be proven.

    What the reference itself had is not reported again. `allow` names codes that the caller permits, such as
    `collective-duplicated` for a pass that gathers again to save memory. Group sizes come from `groups`, or from the
    reference.
    """
    subject = Subject(graph_of(graph), groups or (reference.groups if reference else {}), reference)
    known = reference.known if reference else frozenset()
    found: list[Finding] = []
    failed: set[str | None] = set()
    for rule in RULES:
        too_deep, alone = rule.level == "full" and level != "full", rule.compares and reference is None
        if stage not in rule.stages or too_deep or alone or rule.needs in failed:
            continue
        new = [f for f in rule.check(subject) if f not in known and f.code not in allow]
        found += new
        failed |= {rule.name} if new else set()
        if rule.ground and new:
            break
    return tuple(found)


def check(
    graph: Graph | GraphModule,
    *,
    stage: Stage = "captured",
    reference: Snapshot | None = None,
    groups: Groups | None = None,
    level: Level = "full",
    allow: Collection[str] = (),
    where: str | None = None,
) -> tuple[Finding, ...]:
    """`verify`, with an error for what is wrong. Returns what could not be proven. `where` names the pass."""
    found = verify(graph, stage=stage, reference=reference, groups=groups, level=level, allow=allow)
    errors = [finding for finding in found if finding.is_error]
    if errors:
        raise error_of(errors, graph_of(graph), where)
    return found
