"""Verification of a run, by level: the graph before the first pass, and after every pass."""

from __future__ import annotations

from torch.fx import GraphModule

from counterpoint.errors import VerifyError
from counterpoint.ir.groups import GroupTable
from counterpoint.options import CompileOptions
from counterpoint.passes.book import LedgerBook
from counterpoint.passes.values import ValueCheck


class Checker:
    """Knows the input graph, and holds every later state of it against that."""

    def __init__(self, gm: GraphModule, groups: GroupTable, options: CompileOptions) -> None:
        self.notes: list[str] = []
        self._gm = gm
        self._level = options.verify
        self._values = ValueCheck(gm, groups, options.bitwise) if options.verify == "paranoid" else None

    def check_input(self) -> None:
        """Raise VerifyError unless the input graph is a valid distributed program."""
        self._gm.graph.lint()
        if self._values is not None and (note := self._values.prepare()):
            self.notes.append(note)

    def check_after(self, by: str, book: LedgerBook) -> None:
        """Raise unless the graph is valid, means what the input graph meant, and every collective is accounted for."""
        if self._level != "off":
            self._gm.graph.lint()
        check_account(self._gm, by, book)
        differences = list(self._values.compare()) if self._values is not None else []
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
        next_step="let emitted nodes carry(new, *old) the collectives they replace, or give the verdict deduplicated",
    )
