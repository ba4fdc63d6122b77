"""What is checked of the operators that exchange parts: values and gradients, against torch's own all-to-all."""

from __future__ import annotations

import torch
import torch.distributed._functional_collectives as funcol
from torch import Tensor

from counterpoint.ir.pipelined import OPS
from tests.support.pipelined_cases import Draw, settle, world


def exchanged(tensor: Tensor) -> Tensor:
    """Equal parts along dim 0, with a gradient."""
    ranks, group = world()
    sizes = [tensor.shape[0] // ranks] * ranks
    return funcol.all_to_all_single_autograd(tensor.contiguous(), sizes, sizes, group)


def gradients(results: list[Tensor], operands: list[Tensor]) -> list[Tensor]:
    """Of the sum of all results, each element with a weight of its own."""
    weights = [torch.arange(result.numel()).view(result.shape) % 3 - 1 for result in results]
    loss = sum((result * weight).sum() for result, weight in zip(results, weights, strict=True))
    return list(torch.autograd.grad(loss, operands))


def check_exchanges(lowering: str, chunks: int) -> list[str]:
    """Two and three dims, biases, results kept or not; parts that no number of chunks divides."""
    settle(lowering)
    ranks, group = world()
    f32, lines = torch.float32, list[str]()
    for shape, keep in (((5, 7), False), ((5, 7), True), ((3, 4, 7), True), ((1, 7), False)):
        draw = Draw(f32)
        x, w, v = draw.one((shape[0] * ranks, *shape[1:])), draw.one((7, 3)), draw.one((7, 2))
        b, c = draw.one((3,)), draw.one((2,))
        operands = [operand.requires_grad_() for operand in (x, w, v, b, c)]
        received = exchanged(x)
        plain = [received @ w + b, received @ v + c, *([received] if keep else [])]
        ours = OPS.all_to_all_matmul.default(x, [w, v], [b, c], [f32, f32], chunks, ranks, group, keep)
        lines += different(f"received {shape} keep={keep}", [*plain], [*ours], operands)
        plain = [exchanged(x @ w + b)]
        ours = [OPS.matmul_all_to_all.default([x], [w], b, chunks, ranks, group)]
        lines += different(f"sent {shape}", plain, ours, [x, w, b])
    return lines


def different(what: str, plain: list[Tensor], ours: list[Tensor], operands: list[Tensor]) -> list[str]:
    """What is not equal, bit by bit; the operands are small whole numbers."""
    pairs = [("value", plain, ours), ("gradient", gradients(plain, operands), gradients(ours, operands))]
    return [
        f"{what}: {kind} {i}"
        for kind, left, right in pairs
        for i, (one, other) in enumerate(zip(left, right, strict=True))
        if not torch.equal(one, other) or not other.is_contiguous()
    ]
