"""Verification of a run, by level: the graph before the first pass, and after every pass."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from torch.fx import GraphModule

from counterpoint.errors import VerifyError
from counterpoint.ir import verify
from counterpoint.ir.groups import GroupTable
from counterpoint.options import CompileOptions
from counterpoint.passes.book import LedgerBook
from counterpoint.passes.values import ValueCheck


class Checker:
    """Knows the input graph, and holds every later state of it against that."""

    def __init__(self, gm: GraphModule, groups: GroupTable, options: CompileOptions) -> None:
        self.notes: list[str] = []
        """What could not be checked at the level asked for, and what the input graph had itself."""
        self._gm = gm
        self._groups = groups
        self._is_on = options.verify != "off"
        self._level: Literal["structural", "full"] = "structural" if options.verify == "structural" else "full"
        self._reference: verify.Snapshot | None = None
        self._values = ValueCheck(gm, groups, options.bitwise) if options.verify == "paranoid" else None

    def check_input(self) -> None:
        """Raise VerifyError where the graph cannot even be read. A fault of one collective concerns that one alone:
        it is noted, and no later pass is blamed for it."""
        if not self._is_on:
            return
        subject = verify.Subject(self._gm.graph, self._groups, None)
        if any(finding for rule in verify.RULES if rule.ground for finding in rule.check(subject)):
            verify.check(self._gm, groups=self._groups, level="structural", where="input graph")
        self._reference = verify.Snapshot.of(self._gm, self._groups, level=self._level)
        self.notes += [f"the input graph has {finding}" for finding in sorted(map(str, self._reference.known))]
        if self._values is not None and (note := self._values.prepare()):
            self.notes.append(note)

    def check_after(self, by: str, book: LedgerBook, permitted: Collection[str]) -> None:
        """Raise unless the graph is valid, means what the input graph meant, and every collective is accounted for."""
        if self._is_on:
            unproven = verify.check(
                self._gm,
                reference=self._reference,
                groups=self._groups,
                level=self._level,
                allow=permitted,
                where=f"pass {by}",
            )
            if self._values is None or not self._values.can_compare:
                self.notes += [f"after {by}: {finding}" for finding in unproven]
        check_account(self._gm, by, book)
        if self._values is not None:
            self._compare_values(by, self._values)

    def _compare_values(self, by: str, values: ValueCheck) -> None:
        differences = list(values.compare())
        if differences:
            raise VerifyError(
                "the graph computes something else than before: " + "; ".join(differences[:4]),
                where=f"pass {by}",
                next_step="this is a fault of the pass; it was undone. Please report it with the graph",
            )


def check_account(gm: GraphModule, by: str, book: LedgerBook) -> None:
    """Raise VerifyError when a collective has vanished without a verdict, or has come out of nowhere."""
    lost = [facts.origin for facts in book.unaccounted(gm.graph)]
    made = [node.name for node in book.strangers(gm.graph)]
    if not lost and not made:
        return
    findings = [f"nothing does the work of {', '.join(lost)}"] if lost else []
    findings += [f"{', '.join(made)} does the work of no collective of the input graph"] if made else []
    raise VerifyError(
        "the pass did not account for every collective: " + "; ".join(findings),
        where=f"pass {by}",
        next_step="emit nodes with meta=carrying(*old) for what they replace, or give the verdict deduplicated",
    )
