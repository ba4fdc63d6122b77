"""Of a captured decoder under tensor and sequence parallelism nothing is left that could be pipelined."""

from __future__ import annotations

import pytest
import torch

from counterpoint.capture.compiled import capture_compiled
from counterpoint.capture.example_models import Decoder, DecoderConfig, parallelize_decoder
from counterpoint.capture.world import fake_world
from counterpoint.options import CompileOptions
from counterpoint.passes.ledger import VerdictKind
from counterpoint.passes.pipeline import Pipeline, run_pipeline


@pytest.mark.parametrize("world", [8, 64])
def test_nothing_is_left_but_what_no_matmul_touches(world: int) -> None:
    config = DecoderConfig(
        vocabulary=256, dim=8 * world, layers=1, heads=2 * world, kv_heads=world, hidden=128, positions=64
    )
    with fake_world(world) as here:
        with torch.device("meta"):
            model = parallelize_decoder(Decoder(config), here.mesh())
        graphs = capture_compiled(model, (torch.empty(2, 64, dtype=torch.int64, device="meta"),), fullgraph=True)
    left: dict[str, list[tuple[str, str]]] = {}
    for graph in graphs:
        report = run_pipeline(
            graph.gm,
            Pipeline.parse("micro-pipeline-tp{when=always}"),
            groups=graph.groups,
            options=CompileOptions(on_error="raise"),
        )
        kinds = [entry.verdict.kind for entry in report.ledger]
        assert kinds.count(VerdictKind.PIPELINED) == 5
        left[graph.role] = [
            (entry.facts.kind, entry.verdict.code)
            for entry in report.ledger
            if entry.verdict.kind is VerdictKind.LEFT_ALONE
        ]
    # The embedding's rows are added up, its gradient is scattered into it, and the logits are returned.
    assert left == {
        "forward": [("reduce_scatter", "no-product"), ("all_gather", "no-matmul")],
        "backward": [("all_gather", "no-matmul")],
    }
