"""What a collective leaves on this rank, where all ranks are taken to hold the same data.

So a sum over n ranks is n times the own value, an average is the value itself, and a gather repeats the own part.
Training stays sane that way: averaged gradients are the own gradients. Each function writes as many bytes as the real
collective would write here, because those writes compete with compute for memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_IDEMPOTENT = frozenset({"avg", "max", "min", "band", "bor"})
"""Reductions of equal values that give the value again."""


def reduced_into(target: Tensor, value: Tensor, reduce_op: str, ranks: int) -> None:
    """Write the reduction of what all ranks hold."""
    if reduce_op in _IDEMPOTENT:
        _copy(target, value)
    elif reduce_op == "product":
        target.copy_(value**ranks)
    elif reduce_op == "bxor":
        _copy(target, value) if ranks % 2 else target.zero_()
    elif value.dtype is torch.bool:
        _copy(target, value)
    elif value.dtype.is_floating_point or value.dtype.is_complex or target is not value:
        _scaled(target, value, ranks)
    else:
        target.mul_(ranks)


def gathered_into(target: Tensor, part: Tensor) -> None:
    """Write the part of every rank, one after the other."""
    if part.numel():
        target.view(-1, part.numel()).copy_(part.reshape(1, -1).expand(target.numel() // part.numel(), -1))


def scattered_into(target: Tensor, value: Tensor, reduce_op: str, rank: int, ranks: int) -> None:
    """Write the reduction of what all ranks have for this one."""
    if target.numel():
        reduced_into(target.view(-1), value.reshape(ranks, -1)[rank], reduce_op, ranks)


def exchanged_into(
    target: Tensor, value: Tensor, received: Sequence[int], sent: Sequence[int], rank: int, ranks: int
) -> None:
    """Write what every rank has for this one; with uneven splits as much of it as is asked for, repeated as needed."""
    ins = list(sent) or [value.shape[0] // ranks] * ranks
    outs = list(received) or [target.shape[0] // ranks] * ranks
    mine = value.split(ins)[rank]
    for slot in target.split(outs):
        if slot.shape[0] == mine.shape[0]:
            slot.copy_(mine)
        elif slot.numel():
            fill(slot, mine)


def fill(target: Tensor, value: Tensor) -> None:
    """Write the rows of `value` over and over until `target` is full; zeros where there are none."""
    if not value.shape[0]:
        target.zero_()
        return
    rows = torch.arange(target.shape[0], device=target.device) % value.shape[0]
    target.copy_(value.index_select(0, rows))


def _copy(target: Tensor, value: Tensor) -> None:
    if target is not value and target.data_ptr() != value.data_ptr():
        target.copy_(value)


def _scaled(target: Tensor, value: Tensor, ranks: int) -> None:
    if value.dtype.is_floating_point and value.dtype.itemsize == 1:
        target.copy_((value.float() * ranks).to(value.dtype))
    else:
        torch.mul(value, ranks, out=target)
