"""Operators that were measured one by one, brought in line with what whole graphs take.

Alone and again and again, an operator finds other caches, clocks and neighbours than in a step, and what is not worth
a measurement of its own is reckoned by formulas. The compute of a graph as a whole shows what all that adds up to: each
time is scaled until the graphs take what they were measured to take. A graph says more about what takes most of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log

from torch.fx import Node

from counterpoint.cost.measured import MeasuredTable
from counterpoint.cost.model import CostModel

ROUNDS = 50
MOST = 4.0
"""A graph that takes so many times more or less than its operators has been measured at another time or place."""
_REST = ""
"""Stands for everything that formulas tell."""


@dataclass(frozen=True)
class Whole:
    """The compute of one graph, and what it takes as a whole."""

    nodes: tuple[Node, ...]
    us: float


def fitted(table: MeasuredTable, wholes: Sequence[Whole], model: CostModel) -> MeasuredTable:
    """The table with times by which every graph takes what it was measured to take, as nearly as can be."""
    plain = replace(table, estimate_scale=1.0)
    asked = replace(model, table=plain)
    shares = [_shares(whole.nodes, asked) for whole in wholes]
    usable = [
        (share, whole.us)
        for share, whole in zip(shares, wholes, strict=True)
        if whole.us > 0 and 1 / MOST < sum(share.values()) / whole.us < MOST
    ]
    scale = _scales([share for share, _ in usable], [us for _, us in usable])
    operators = {key: us * scale.get(key, 1.0) for key, us in table.operators.items()}
    return replace(table, operators=operators, estimate_scale=scale.get(_REST, 1.0))


def compute_us(nodes: Iterable[Node], model: CostModel) -> float:
    """What the model says of the compute of a graph as a whole."""
    return sum(model.node_us(node) or 0.0 for node in nodes)


def _shares(nodes: Iterable[Node], model: CostModel) -> dict[str, float]:
    """Microseconds of a graph by operator; all that was not measured in one."""
    found: defaultdict[str, float] = defaultdict(float)
    for node in nodes:
        us = model.node_us(node)
        if us:
            found[model.measured_key(node) or _REST] += us
    return found


def _scales(shares: Sequence[Mapping[str, float]], wholes_us: Sequence[float]) -> dict[str, float]:
    """Factors by which the shares of each graph add up to its whole; proportional fitting, round by round."""
    keys = sorted({key for share in shares for key in share})
    scale = dict.fromkeys(keys, 1.0)
    parts = {
        key: [(k, share[key] / sum(share.values())) for k, share in enumerate(shares) if key in share] for key in keys
    }
    for _ in range(ROUNDS):
        ratios = [
            us / sum(part * scale[key] for key, part in share.items())
            for share, us in zip(shares, wholes_us, strict=True)
        ]
        for key, found in parts.items():
            weight = sum(part for _, part in found)
            scale[key] *= exp(sum(part * log(ratios[k]) for k, part in found) / weight)
    return scale
