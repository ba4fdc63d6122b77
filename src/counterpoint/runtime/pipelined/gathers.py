"""What is computed of a gathered operand, as data: any part of it may arrive at any time, and is multiplied at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from counterpoint.ir.products import LEFT_SUMMED, RIGHT_SUMMED, gathered_shape, is_summed, product_shape
from counterpoint.runtime.pipelined.arithmetic import (
    accumulation_dtype,
    add_product,
    multiply_into,
    multiply_scaled_into,
    part,
)


@dataclass(frozen=True, kw_only=True)
class Factor:
    """What the gathered operand is multiplied with."""

    other: Tensor
    bias: Tensor | None
    out_dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class ScaledFactor(Factor):
    """The same for a scaled matmul, whose left operand is the gathered one."""

    scale: Tensor
    result_scale: Tensor | None
    fast_accum: bool


@dataclass(frozen=True, kw_only=True)
class Gather:
    """One call: the shard of this rank, and what its gathering is multiplied with."""

    shard: Tensor
    dim: int
    """Counted from the end."""
    ranks: int
    left: bool
    """The gathered operand stands on the left."""
    factors: tuple[Factor, ...]
    keep: bool
    chunks: int
    shard_scale: Tensor | None = None

    @property
    def summed(self) -> bool:
        """Products sum over the gathered dim, so that every part adds to all of each."""
        return is_summed(self.dim, self.left)

    @property
    def extent(self) -> int:
        """Size of the gathered dim in the shard."""
        return self.shard.shape[self.dim]

    @property
    def scale_travels(self) -> bool:
        """The scale belongs to rows of the shard and is gathered with them; another one is used as it is."""
        scale = self.shard_scale
        return scale is not None and scale.numel() != 1 and scale.shape[:-1] == self.shard.shape[:-1]

    def gathered(self) -> Tensor:
        """Room for the gathered operand."""
        return self.shard.new_empty(gathered_shape(self.shard.shape, self.dim, self.ranks))


class Products:
    """The products of a gather while its parts come in."""

    def __init__(self, gather: Gather, scale: Tensor | None = None) -> None:
        self.gather = gather
        self.scale = scale if scale is not None else gather.shard_scale
        whole = gathered_shape(gather.shard.shape, gather.dim, gather.ranks)
        self.results = [self._room(factor, whole) for factor in gather.factors]
        self._totals = [self._total(room) for room in self.results]

    def add(self, piece: Tensor, start: int) -> None:
        """Multiply a part of the gathered operand that begins at `start` of the gathered dim."""
        length = piece.shape[self.gather.dim]
        if length == 0:
            return
        for factor, result, total in zip(self.gather.factors, self.results, self._totals, strict=True):
            if total is not None:
                self._sum(factor, total, piece, start, length)
            else:
                self._write_part(factor, result, piece, start, length)

    def add_all(self, gathered: Tensor) -> None:
        """Multiply the gathered operand, all of it at once."""
        self._totals = [None] * len(self.results)
        for factor, result in zip(self.gather.factors, self.results, strict=True):
            self._write(factor, result, gathered, factor.other, factor.bias, self.scale)

    def finish(self) -> list[Tensor]:
        """The results, after all parts were added."""
        for factor, result, total in zip(self.gather.factors, self.results, self._totals, strict=True):
            if total is not None:
                result.copy_(total if factor.bias is None else total.add_(factor.bias))
        return self.results

    def _room(self, factor: Factor, whole: Sequence[int]) -> Tensor:
        shapes = (whole, factor.other.shape) if self.gather.left else (factor.other.shape, whole)
        return self.gather.shard.new_empty(product_shape(*shapes), dtype=factor.out_dtype)

    def _total(self, room: Tensor) -> Tensor | None:
        if not self.gather.summed:
            return None
        return torch.zeros_like(room, dtype=accumulation_dtype(self.gather.shard.dtype))

    def _sum(self, factor: Factor, total: Tensor, piece: Tensor, start: int, length: int) -> None:
        if self.gather.left:
            add_product(total, piece, factor.other.narrow(RIGHT_SUMMED, start, length))
        else:
            add_product(total, factor.other.narrow(LEFT_SUMMED, start, length), piece)

    def _write_part(self, factor: Factor, result: Tensor, piece: Tensor, start: int, length: int) -> None:
        dim = self.gather.dim
        # A leading dim is also the other operand's; a row or column is not.
        other = part(factor.other, dim, start, length) if dim < -2 else factor.other
        bias = None if factor.bias is None else part(factor.bias, dim, start, length)
        scale = self.scale
        if scale is not None and scale.numel() != 1:
            scale = scale.narrow(dim, start, length)
        self._write(factor, result.narrow(dim, start, length), piece, other, bias, scale)

    def _write(
        self, factor: Factor, out: Tensor, operand: Tensor, other: Tensor, bias: Tensor | None, scale: Tensor | None
    ) -> None:
        if isinstance(factor, ScaledFactor) and scale is not None:
            multiply_scaled_into(
                out, (operand, scale), (other, factor.scale), bias, factor.result_scale, factor.fast_accum
            )
        elif self.gather.left:
            multiply_into(out, operand, other, bias)
        else:
            multiply_into(out, other, operand, bias)
