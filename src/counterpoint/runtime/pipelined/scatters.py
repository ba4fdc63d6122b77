"""The sum of products that a reduction is fed with, as data: any part of it can be computed by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from counterpoint.ir.products import product_shape
from counterpoint.runtime.pipelined.arithmetic import (
    add_product,
    multiply_into,
    multiply_scaled_into,
    part,
)


@dataclass(frozen=True, kw_only=True)
class Scales:
    """What makes the products scaled ones: a scale for each operand."""

    left: tuple[Tensor, ...]
    right: tuple[Tensor, ...]
    result: Tensor | None
    fast_accum: bool


@dataclass(frozen=True, kw_only=True)
class Partial:
    """This rank's summand of a reduction: the sum of products, and the bias."""

    lefts: tuple[Tensor, ...]
    rights: tuple[Tensor, ...]
    bias: Tensor | None
    out_dtype: torch.dtype | None
    scales: Scales | None = None

    @property
    def shape(self) -> list[int]:
        """Of the sum."""
        return product_shape(self.lefts[0].shape, self.rights[0].shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the sum, as it travels."""
        return self.out_dtype or self.lefts[0].dtype

    @property
    def device(self) -> torch.device:
        """Where it is computed."""
        return self.lefts[0].device

    def room(self, part: tuple[int, int] | None = None) -> Tensor:
        """Room for the sum, or for a part of it, a length along a dim."""
        shape = self.shape
        if part is not None:
            shape[part[0]] = part[1]
        return self.lefts[0].new_empty(shape, dtype=self.dtype)

    def all(self) -> Tensor:
        """The whole sum."""
        return self._into(self.room(), self)

    def part(self, dim: int, start: int, length: int) -> Tensor:
        """A part of the sum along a dim that is counted from the end."""
        return self.part_into(self.room((dim, length)), dim, start, length)

    def part_into(self, out: Tensor, dim: int, start: int, length: int) -> Tensor:
        """The same, written into a given buffer."""
        return self._into(out, self.narrowed(dim, start, length))

    def as_rows(self) -> Partial:
        """The same sum with all leading dims as rows, where the operands allow it."""
        if any(right.dim() != 2 for right in self.rights) or (self.bias is not None and self.bias.dim() > 1):
            return self
        return replace(self, lefts=tuple(left.reshape(-1, left.shape[-1]) for left in self.lefts))

    def narrowed(self, dim: int, start: int, length: int) -> Partial:
        """The operands of a part: rows belong to the left ones, columns to the right ones, leading dims to both."""

        def left(value: Tensor) -> Tensor:
            return value if dim == -1 else part(value, dim, start, length)

        def right(value: Tensor) -> Tensor:
            return value if dim == -2 else part(value, dim, start, length)

        scales = self.scales
        if scales is not None:
            scales = Scales(
                left=tuple(value if value.numel() == 1 else left(value) for value in scales.left),
                right=tuple(value if value.numel() == 1 else right(value) for value in scales.right),
                result=scales.result,
                fast_accum=scales.fast_accum,
            )
        return Partial(
            lefts=tuple(map(left, self.lefts)),
            rights=tuple(map(right, self.rights)),
            bias=None if self.bias is None else part(self.bias, dim, start, length),
            out_dtype=self.out_dtype,
            scales=scales,
        )

    def _into(self, out: Tensor, own: Partial) -> Tensor:
        if own.scales is not None:
            return _scaled_into(out, own, own.scales)
        same = out.dtype == own.lefts[0].dtype
        total = out if same else own.lefts[0].new_empty(out.shape)
        multiply_into(total, own.lefts[0], own.rights[0], own.bias)
        for left, right in zip(own.lefts[1:], own.rights[1:], strict=True):
            add_product(total, left, right)
        return out if same else out.copy_(total)


def _scaled_into(out: Tensor, own: Partial, scales: Scales) -> Tensor:
    for i, operands in enumerate(zip(own.lefts, scales.left, own.rights, scales.right, strict=True)):
        left, left_scale, right, right_scale = operands
        target = torch.empty_like(out) if i else out
        bias = None if i else own.bias
        multiply_scaled_into(target, (left, left_scale), (right, right_scale), bias, scales.result, scales.fast_accum)
        if i:
            out.add_(target)
    return out
