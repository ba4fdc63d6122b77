"""What a check finds: a stable code, the node, what was seen and what to do. Codes are one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch.fx import Graph, Node

from counterpoint.errors import VerifyError

HINTS: Mapping[str, str] = MappingProxyType(
    {
        # Order.
        "foreign-operand": "copy the operand into this graph, or use this graph's own node",
        "erased-operand": "replace the uses of a node before erasing it",
        "used-before-made": "sort the graph, or insert the user after its operand",
        "cycle": "two rewrites depend on each other's result: apply one of them",
        # Waits.
        "never-waited": "wait for the result, or remove the collective",
        "waited-twice": "wait once and share the waited tensor",
        "wait-on-nothing": "wait for the result of the collective, not for another tensor",
        "differentiable": "trace the graph through AOT autograd, which replaces differentiable forms",
        # Buffers.
        "read-in-flight": "read after the wait",
        "written-in-flight": "write after the wait, or into another buffer",
        # Metadata.
        "no-metadata": "create nodes through the editor, which computes their metadata",
        "wrong-metadata": "recompute the node's metadata from its operands",
        "cannot-compute": "the operands do not fit the operator: look at their shapes and dtypes",
        # Interface.
        "inputs-changed": "keep number, order, shapes and dtypes of the placeholders",
        "outputs-changed": "keep number, order, shapes, dtypes and None positions of the outputs",
        "aliasing-changed": "copy, so that exactly the same outputs share storage with inputs",
        "mutation-changed": "write into the same inputs as before, and no others",
        # Meaning.
        "group-changed": "merge only collectives of one group",
        "reduce-op-changed": "merge only collectives with one reduce op",
        "dtype-changed": "merge only collectives of one dtype, and cast where the original does",
        "divisor-changed": "scale every member as the original does",
        "collective-changed": "the result came from another kind of collective before",
        "collective-dropped": "every collective of the original must reach the values that it reached",
        "collective-duplicated": "use the first result again",
        "collective-added": "the original has no such collective here: use the value itself, or remove it",
        "not-reduced": "the original reduces this value over the group",
        "reduced-twice": "the value is reduced over this group already",
        "value-moved": "hand each part of a packed result to the user of its own member",
        "value-changed": "the value is computed from other inputs than before",
        "unproven": "compare values on simulated ranks (level paranoid)",
        # Between ranks.
        "order-differs": "all ranks of a group must start the same collectives in the same order",
        "deadlock": "start the collectives of different groups in one order on all ranks",
        "unmatched-message": "every send needs a receive with its tag on the peer, and the other way round",
    }
)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or that could not be proven."""

    code: str
    """Key into `HINTS`; stable across releases."""
    node: str
    """Name of the node at fault; the graph output's name where no node is."""
    message: str
    hint: str = ""

    def __post_init__(self) -> None:
        if not self.hint:
            object.__setattr__(self, "hint", HINTS[self.code])

    @property
    def is_error(self) -> bool:
        """False for what the verifier cannot decide."""
        return self.code != "unproven"

    def __str__(self) -> str:
        return f"{self.code} at {self.node}: {self.message} ({self.hint})"


def at(code: str, node: Node, message: str) -> Finding:
    """A finding at a node."""
    return Finding(code, node.name, message)


def report(findings: Iterable[Finding], graph: Graph, around: int = 5) -> str:
    """The findings as text, each with the nodes around it."""
    nodes = list(graph.nodes)
    places = {node.name: i for i, node in enumerate(nodes)}
    lines: list[str] = []
    for finding in findings:
        lines.append(str(finding))
        place = places.get(finding.node)
        if place is not None:
            start = max(0, place - around)
            lines += [_line(n, n is nodes[place]) for n in nodes[start : place + around + 1]]
    return "\n".join(lines)


def _line(node: Node, marked: bool) -> str:
    operands = ", ".join(map(str, node.args)) if node.op != "placeholder" else ""
    named = "".join(f", {key}={value}" for key, value in node.kwargs.items())
    shape = getattr(node.meta.get("val"), "shape", None)
    known = "" if shape is None else f"  # {node.meta['val'].dtype} {list(shape)}"
    return f"  {'>' if marked else ' '} {node.name} = {node.op} {node.target}({operands}{named}){known}"


def error_of(findings: Iterable[Finding], graph: Graph, where: str | None) -> VerifyError:
    """The error that carries findings to a user."""
    held = tuple(findings)
    count = "one finding" if len(held) == 1 else f"{len(held)} findings"
    return VerifyError(
        f"the graph is not valid, {count}:\n{report(held, graph)}",
        where=where,
        next_step="if a pass of this package made the graph, please report it with this text",
    )
