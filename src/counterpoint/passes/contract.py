"""What a pass needs of those before it, what it leaves behind, what it cannot stand on; checked before the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from counterpoint.errors import ContractError

if TYPE_CHECKING:
    from counterpoint.passes.base import Pass


@dataclass(frozen=True, kw_only=True)
class Contract:
    """Facts about the graph, as words. Every pass also provides its own name."""

    provides: frozenset[str] = frozenset()
    requires: frozenset[str] = frozenset()
    """Facts that the captured graph or an earlier pass must provide."""
    conflicts_with: frozenset[str] = frozenset()
    """Facts that must not stand yet when this pass runs."""
    permits: frozenset[str] = frozenset()
    """Findings of the verifier that this pass may cause: `collective-duplicated` for one that gathers again."""


def provided_by(item: Pass | type[Pass]) -> frozenset[str]:
    """The facts that stand after a pass has run."""
    return item.contract.provides | {item.name}


def check_contracts(passes: Sequence[Pass], *, given: Iterable[str] = (), known: Iterable[type[Pass]] = ()) -> None:
    """Raise ContractError unless every pass finds what it requires and nothing that it conflicts with.

    `given` are the facts of the graph itself; `known` are passes that the message may suggest.
    """
    findings = list(_findings(passes, frozenset(given), known))
    if findings:
        raise ContractError(
            "the passes do not fit together:" + "".join(f"\n  {finding}" for finding in findings),
            where=f"pipeline {','.join(item.name for item in passes)}",
            next_step="add or reorder the passes named above",
        )


def _findings(passes: Sequence[Pass], given: frozenset[str], known: Iterable[type[Pass]]) -> Iterator[str]:
    standing = dict.fromkeys(given, "the graph")
    for position, item in enumerate(passes):
        for fact in sorted(item.contract.requires - standing.keys()):
            yield f"{item.name} requires {fact!r}, {_who_provides(fact, passes[position + 1 :], known)}"
        for fact in sorted(item.contract.conflicts_with & standing.keys()):
            yield f"{item.name} conflicts with {fact!r}, which {standing[fact]} provides before it"
        standing |= dict.fromkeys(provided_by(item), item.name)


def _who_provides(fact: str, later: Sequence[Pass], known: Iterable[type[Pass]]) -> str:
    behind = [item.name for item in later if fact in provided_by(item)]
    if behind:
        return f"which {behind[0]} provides, but only after it"
    elsewhere = sorted({item.name for item in known if fact in provided_by(item)})
    if elsewhere:
        return f"which no earlier pass provides; {' or '.join(elsewhere)} would"
    return "which no pass provides"
