"""What callers of a graph rely on: inputs, outputs, which outputs are inputs' memory, which inputs are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from counterpoint.ir import effects
from counterpoint.ir.storage import Storage
from counterpoint.ir.verify.finding import Finding
from counterpoint.ir.verify.sizes import exact


@dataclass(frozen=True)
class Signature:
    """Comparable for equality."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shared: tuple[tuple[int, ...], ...]
    """For each output, the numbers of the inputs whose memory it may share."""
    written: tuple[int, ...]
    """Numbers of the inputs that the graph writes."""

    @staticmethod
    def of(graph: Graph) -> Signature:
        """Read the signature of a graph."""
        storage = Storage()
        placeholders: dict[Node, int] = {}
        written: set[int] = set()
        classes: dict[Node, list[int]] = {}
        writes: list[Node] = []
        for node in graph.nodes:
            storage.add(node)
            if node.op == "placeholder":
                placeholders[node] = len(placeholders)
            writes += effects.written_nodes(node)
        for node, number in placeholders.items():
            classes.setdefault(storage.find(node), []).append(number)
        for target in writes:
            written.update(classes.get(storage.find(target), ()))
        leaves = output_leaves(graph)
        shared = (classes.get(storage.find(leaf), ()) if isinstance(leaf, Node) else () for leaf in leaves)
        return Signature(
            inputs=tuple(describe(node) for node in placeholders),
            outputs=tuple(describe(leaf) for leaf in leaves),
            shared=tuple(tuple(numbers) for numbers in shared),
            written=tuple(sorted(written)),
        )


def output_node(graph: Graph) -> Node:
    """The output node."""
    found: Node = next(node for node in reversed(graph.nodes) if node.op == "output")
    return found


def output_leaves(graph: Graph) -> list[Any]:
    """What the graph returns, containers flattened; the containers' form is part of no comparison."""
    return list(_leaves(output_node(graph).args[0]))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _leaves(part)
    else:
        yield value


def describe(leaf: Any) -> str:
    """Dtype and shape of an input or output, symbols by name."""
    value = leaf.meta.get("val") if isinstance(leaf, Node) else leaf
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{[exact(size) for size in value.shape]} on {value.device}"
    if isinstance(value, torch.SymInt):
        return f"int {exact(value)}"
    return repr(value) if value is None or isinstance(value, (int, float, str)) else type(value).__name__


def check_signature(graph: Graph, reference: Signature) -> Iterator[Finding]:
    """The signature is what it was."""
    now = Signature.of(graph)
    names = [node.name for node in graph.nodes if node.op == "placeholder"]
    output = output_node(graph).name
    yield from _differences("inputs-changed", "input", names, reference.inputs, now.inputs, output)
    leaves = [leaf.name if isinstance(leaf, Node) else output for leaf in output_leaves(graph)]
    yield from _differences("outputs-changed", "output", leaves, reference.outputs, now.outputs, output)
    if len(now.shared) == len(reference.shared):
        for i, (before, after) in enumerate(zip(reference.shared, now.shared, strict=True)):
            if before != after:
                text = f"output {i} shared memory with {_inputs(before)} and now does with {_inputs(after)}"
                yield Finding("aliasing-changed", leaves[i], text)
    for number in sorted(set(now.written) ^ set(reference.written)):
        text = "is written now" if number in now.written else "is not written any more"
        yield Finding("mutation-changed", names[number] if number < len(names) else output, f"input {number} {text}")


def _inputs(numbers: tuple[int, ...]) -> str:
    return f"inputs {list(numbers)}" if numbers else "no input"


def _differences(
    code: str, what: str, names: list[str], before: tuple[str, ...], after: tuple[str, ...], output: str
) -> Iterator[Finding]:
    if len(before) != len(after):
        yield Finding(code, output, f"there were {len(before)} {what}s and are {len(after)}")
        return
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new:
            yield Finding(code, names[i], f"{what} {i} was {old} and is {new}")
