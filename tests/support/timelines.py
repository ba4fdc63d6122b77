"""Simulated graphs for tests of what draws and explains them."""

from __future__ import annotations

from torch import ops

from counterpoint.capture.graph import CapturedGraph
from counterpoint.cost.model import CostModel
from counterpoint.cost.presets import topology
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.groups import GroupTable
from counterpoint.options import CompileOptions
from counterpoint.passes.pipeline import Pipeline
from counterpoint.report.prediction import Prediction, predict

PASSES = "bucket-all-reduce"
MODEL = CostModel(topology=topology("cpu-10g"))


def gradients(layers: int = 4, size: int = 64, odd: bool = False) -> CapturedGraph:
    """Products, each followed by the sum of its result over eight ranks; one of another operation when `odd`."""
    builder = GraphBuilder(groups={"dp": range(8)})
    x = builder.input("x", (size, size))
    sums = []
    for layer in range(layers):
        x = builder.call(ops.aten.mm.default, x, x)
        reduce_op = "max" if odd and layer == 0 else "sum"
        sums.append(builder.all_reduce(x, reduce_op, "dp"))
    gm = builder.finish(*sums)
    return CapturedGraph(gm, name="gradients", role="step", world_size=8, groups=dict(builder.groups))


def prediction(captured: CapturedGraph, passes: str = PASSES) -> Prediction:
    """What the passes are predicted to gain on it."""
    return predict(
        captured.gm,
        Pipeline.parse(passes),
        options=CompileOptions(passes=passes),
        groups=GroupTable(captured.groups),
        model=MODEL,
        name=captured.role,
    )
