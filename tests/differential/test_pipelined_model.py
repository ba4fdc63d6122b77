"""A decoder in Llama's shape under tensor and sequence parallelism trains alike in pieces and whole, on real ranks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from counterpoint.capture.example_models import Decoder, DecoderConfig, parallelize_decoder
from counterpoint.report.history import clear_reports, reports

CONFIG = DecoderConfig(vocabulary=64, dim=32, layers=1, heads=8, kv_heads=4, hidden=48, positions=24)
"""Grouped queries and SwiGLU. Five chunks divide no part of the sequence, over two ranks or four."""
ALWAYS = "micro-pipeline-tp{when=always chunks=5}"


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def losses_and_gradients(run: Any, model: Any, tokens: Tensor) -> list[Tensor]:
    """The sum of the logits, weighted so that no gradient is zero, and all gradients."""
    logits = run(tokens)
    weight = torch.linspace(-1.0, 1.0, logits.shape[-1], dtype=logits.dtype)
    loss = (logits * weight).sum()
    loss.backward()
    found = [logits.detach(), loss.detach(), *(whole(parameter.grad) for parameter in model.parameters())]
    model.zero_grad()
    return found


def verdicts() -> dict[str, int]:
    """How many collectives ended how."""
    found: dict[str, int] = {}
    for record in reports():
        assert record.problems == (), str(record)
        for ledger in record.ledgers:
            for entry in ledger:
                found[entry.verdict.kind.value] = found.get(entry.verdict.kind.value, 0) + 1
    return found


def job_decoder(
    config: DecoderConfig, dtype: torch.dtype, batch: int, sequence: bool, options: dict[str, Any]
) -> tuple[dict[str, int], float]:
    """Verdicts, and by how much anything differs from eager mode, measured by its largest number."""
    torch.manual_seed(0)
    plain = Decoder(config).to(dtype)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    reference, model = (parallelize_decoder(copy.deepcopy(plain), mesh, sequence=sequence) for _ in range(2))
    tokens = torch.randint(config.vocabulary, (batch, config.positions))
    torch._dynamo.reset()
    clear_reports()
    compiled = torch.compile(model, backend="counterpoint", options=options, fullgraph=True)
    ours, eager = (losses_and_gradients(run, owner, tokens) for run, owner in ((compiled, model), (reference,) * 2))
    worst = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, eager, strict=True))
    return verdicts(), worst


def options(**given: Any) -> dict[str, Any]:
    return {"codegen": "eager", "on_error": "raise", "verify": "full", **given}


@pytest.mark.parametrize(
    ("world_size", "dtype", "batch", "sequence", "close"),
    [
        (2, torch.float32, 2, True, 1e-4),
        (4, torch.float32, 1, True, 1e-4),
        (2, torch.bfloat16, 2, True, 6e-2),
        (2, torch.float32, 2, False, 1e-4),
    ],
)
def test_forward_and_backward_agree_with_eager_mode(
    ranks: Any, world_size: int, dtype: torch.dtype, batch: int, sequence: bool, close: float
) -> None:
    for kinds, worst in ranks(world_size).run(job_decoder, CONFIG, dtype, batch, sequence, options(passes=ALWAYS)):
        # What is left: the embedding's reduction and its gradient's gather, and the gathered logits.
        assert kinds["left-alone"] <= 3
        assert kinds["pipelined"] >= (9 if sequence else 4)
        assert worst < close


LARGE = DecoderConfig(vocabulary=64, dim=256, layers=1, heads=8, kv_heads=4, hidden=1024, positions=512)


def test_the_default_pipeline_pipelines_what_pays(ranks: Any) -> None:
    for kinds, worst in ranks(2).run(job_decoder, LARGE, torch.float32, 1, True, options()):
        assert kinds["pipelined"] > 0
        assert worst < 1e-3


@pytest.mark.cxx
def test_generated_code_agrees_with_eager_mode(ranks: Any) -> None:
    generated = options(codegen="inductor", passes=ALWAYS)
    for kinds, worst in ranks(2).run(job_decoder, CONFIG, torch.float32, 1, True, generated, deadline_s=400):
        assert kinds["left-alone"] <= 3
        assert kinds["pipelined"] >= 9
        assert worst < 1e-4
