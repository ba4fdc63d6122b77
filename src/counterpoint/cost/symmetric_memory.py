"""What torch's operators on symmetric memory can be asked for: pure predicates, for passes and for the runtime alike.

Facts of torch/distributed/_symmetric_memory, 2.11 to 2.13. An obstacle is said in words; None means that there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def torch_gather_obstacle(
    *, dims: int, dim: int, left: bool, other_dims: Sequence[int], biases: bool, converts: bool, scaled: bool
) -> str | None:
    """Why `symm_mem.fused_all_gather_matmul` or its scaled form cannot run a gather; `dim` counts from the end.

    converts: a product of plain operands has another element type than they have.
    """
    if not left:
        return "it multiplies the gathered operand from the right only"
    if any(count != 2 for count in other_dims) or not other_dims:
        return "every other operand must be a matrix"
    if biases and not scaled:
        return "it adds no bias"
    if converts and not scaled:
        return "it converts no product"
    if dim == -1 and scaled:
        return "it gathers the summed dim of plain products only"
    # It leaves the gathered dim in front and hands out a view, so results of other dims had to be copied.
    return None if dim in (-1, -dims) else "its results would not be contiguous"


def torch_scatter_obstacle(
    *, dims: int, dim: int, products: int, right_dims: int, bias: bool, scaled: bool
) -> str | None:
    """Why `symm_mem.fused_matmul_reduce_scatter` cannot run a reduction; `dim` counts from the end."""
    if products != 1:
        return "it takes one product"
    if right_dims != 2:
        return "the right operand must be a matrix"
    if bias:
        return "it adds no bias"
    if scaled:
        return "its scaled form is not used"
    return None if dim in (-1, -dims) else "its operand would be copied first"


def torch_all_reduce_obstacle(*, dtypes: Sequence[torch.dtype], nbytes: Sequence[int], reduce_op: str) -> str | None:
    """Why the one-shot, two-shot and multicast all-reduces of torch cannot reduce these tensors."""
    if reduce_op != "sum":
        return "torch's kernels on symmetric memory only add up"
    if not set(dtypes) <= {torch.float32, torch.bfloat16}:
        return "torch's kernels on symmetric memory add float32 and bfloat16"
    # They move 4, 8 or 16 bytes at once.
    if any(size % 4 for size in nbytes):
        return "torch's kernels on symmetric memory move 4 bytes at once"
    return None


TWO_SHOT_RANKS = (2, 4, 8)
"""Group sizes for which torch's two-shot all-reduce has a form with a result of its own."""
