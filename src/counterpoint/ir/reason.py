"""Refusals as data: the one table of reason codes and the record that carries one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from counterpoint.errors import CounterpointError


class Reason(NamedTuple):
    """What a reason code means, and the smallest change that usually removes it."""

    meaning: str
    hint: str


REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        "no-wait": Reason(
            "the collective is started and never waited for", "wait for the result, or remove the collective"
        ),
        "several-waits": Reason(
            "one tensor of the result is waited for more than once", "wait once and share the waited tensor"
        ),
        "partly-waited": Reason(
            "some tensors of a coalesced result are never waited for", "wait for every tensor of the result"
        ),
        "result-escapes": Reason(
            "the unwaited result is used by something other than its wait", "use the waited tensor instead"
        ),
        "no-metadata": Reason(
            'a node has no meta["val"]', "propagate fake tensors over the graph before handing it in"
        ),
        "not-a-collective": Reason("the node does not start a collective", "pass a node that starts one"),
        "malformed": Reason("the node lacks an argument that its operator needs", "repair the call"),
        "unknown-operator": Reason(
            "the operator may communicate and is not in the table of collectives",
            "add it to counterpoint/ir/ops.py",
        ),
        "use-before-made": Reason(
            "an operand would be used before it is made",
            "move the operand up, or its user down, in the same transaction",
        ),
        "hazard-order": Reason(
            "two accesses to one buffer, two random draws, or an effect and a barrier would change places",
            "leave their order as it is",
        ),
        "graph-form": Reason(
            "placeholders must come first and the output last", "put the node between the placeholders and the output"
        ),
        "merge-cycle": Reason(
            "merging these collectives would make one of them wait for itself", "leave one of them out of the bucket"
        ),
        "bucket-form": Reason(
            "this form of the collective cannot be merged with others", "use the functional form with a wait"
        ),
        "bucket-full": Reason("the collective alone fills a bucket", "raise the cap of the bucket"),
        "no-partner": Reason(
            "no other collective has the same kind, group, reduction, device and element type",
            "merge over element types with multi-dtype, or leave it",
        ),
        "unknown-size": Reason("the size is not known while compiling", "give the symbol a hint, or a static size"),
        "written-buffer": Reason(
            "the collective overwrites a buffer that is used otherwise", "use the functional form of the collective"
        ),
        "not-a-gradient": Reason(
            "a later collective of the same group needs the result, so it is no final gradient",
            "merge it with bucket-all-reduce",
        ),
        "no-coalesced-form": Reason("torch has no coalesced form of the operator", "use mode functional"),
        "gathered-memory": Reason(
            "gathering it together with others would keep more memory alive than is allowed",
            "raise max-gathered-mb",
        ),
        "rounding": Reason(
            "merging changes the order of summation, and bitwise equality is asked for", "set bitwise to false"
        ),
        "several-results-kept": Reason(
            "two results would become one tensor, and one of them is written or leaves the graph",
            "return a copy, or write into one",
        ),
        "held-too-long": Reason(
            "its result would have to be kept from the last use of the first one to the first use of this one",
            "raise max-held-mb, if the memory is there",
        ),
        "no-pass": Reason("no pass of the pipeline handles this collective", "add a pass that does"),
        "pass-failed": Reason("a pass failed and was undone", "look at the pass's error, or leave the pass out"),
        "invalid-graph": Reason(
            "the input graph does not verify, so no pass was run", "repair the graph; the report holds the findings"
        ),
    }
)


@dataclass(frozen=True)
class Refusal:
    """Why something was not done. Stable code, the node in the way, and what would let it succeed."""

    code: str
    """Key into `REASONS`; stable across releases."""
    node: str
    """Name of the node in the way."""
    detail: str = ""
    """What was seen there, with values."""
    hint: str = ""
    """The smallest change that removes the reason; empty means the table's own hint."""

    def __post_init__(self) -> None:
        if self.code not in REASONS:
            raise CounterpointError(
                f"unknown reason code {self.code!r}",
                where=f"refusal at node {self.node}",
                next_step="add the code to REASONS in counterpoint/ir/reason.py",
            )

    def __str__(self) -> str:
        reason = REASONS[self.code]
        seen = f": {self.detail}" if self.detail else ""
        return f"{self.code} at {self.node}: {reason.meaning}{seen} ({self.hint or reason.hint})"
