"""Gradients of the pipelined operators, for models that call them directly. Graphs are rewritten behind autograd.

They follow torch's functional collectives: a loss is the sum over ranks, so a gather's gradient is reduced and
scattered, a reduce-scatter's is gathered, an all-reduce's is reduced. Backward is pipelined where it communicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from counterpoint.errors import OperatorError
from counterpoint.ir.pipelined import OPS

_C10D = torch.ops._c10d_functional


def _transposed(value: Tensor) -> Tensor:
    return value.transpose(-1, -2)


def left_gradient(grad: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Two factors whose product is the gradient of the left operand."""
    if left.dim() == 2 and right.dim() > 2:
        # Sums over what the left operand lacks, as part of the product.
        wide = grad.flatten(0, -3).transpose(0, 1).reshape(grad.shape[-2], -1)
        return wide, _transposed(right.flatten(0, -3)).reshape(-1, right.shape[-2])
    return grad, _transposed(right)


def right_gradient(grad: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Two factors whose product is the gradient of the right operand."""
    if right.dim() == 2:
        return left.reshape(-1, left.shape[-1]).t(), grad.reshape(-1, grad.shape[-1])
    return _transposed(left), grad


# -- gathers ----------------------------------------------------------------------------------------------------------


def _keep_gather(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    shard, others, biases, _, *settings, keep = inputs
    ctx.dim, ctx.left, ctx.chunks, ctx.ranks, ctx.group = settings
    ctx.count, ctx.keep = len(others), keep
    ctx.biases = _shapes_of("all_gather_matmul", biases)
    ctx.save_for_backward(shard, *others, *([output[-1]] if keep else []))


def _shapes_of(operator: str, biases: Sequence[Tensor | None]) -> list[Any]:
    """The shapes of those biases that there are."""
    shapes = [bias.shape for bias in biases if bias is not None]
    if any(bias is not None and bias.requires_grad for bias in biases) and len(shapes) < len(biases):
        # Autograd sees lists of tensors, and none with gaps: such biases would silently get no gradient.
        raise OperatorError(
            "some biases are None, and others need a gradient",
            where=f"counterpoint::{operator}",
            next_step="give a bias to every product or to none, for example zeros, or make a call for each kind",
        )
    return shapes


def _of_biases(ctx: Any, grads: Sequence[Tensor | None]) -> list[Tensor | None] | None:
    if len(ctx.biases) != ctx.count:
        return None
    return [None if grad is None else grad.sum_to_size(shape) for grad, shape in zip(grads, ctx.biases, strict=True)]


def _gather_backward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    shard, *held = ctx.saved_tensors
    others, kept = held[: ctx.count], held[ctx.count :]
    products = [None if grad is None else grad.to(shard.dtype) for grad in grads[: ctx.count]]
    of_gathered = grads[-1] if ctx.keep else None
    needs_shard, needs_others = ctx.needs_input_grad[:2]
    shard_grad = _of_shard(ctx, shard, others, products, of_gathered) if needs_shard else None
    other_grads = _of_others(ctx, shard, kept, others, products) if _any(needs_others) else [None] * ctx.count
    return shard_grad, other_grads, _of_biases(ctx, products), *_rest(ctx)


def _rest(ctx: Any) -> list[None]:
    """For the arguments behind the first three; the dispatcher leaves out those that have their defaults."""
    return [None] * (len(ctx.needs_input_grad) - 3)


def _any(needed: Any) -> bool:
    return any(needed) if isinstance(needed, (list, tuple)) else bool(needed)


def _of_shard(
    ctx: Any, shard: Tensor, others: list[Tensor], grads: list[Tensor | None], of_gathered: Tensor | None
) -> Tensor:
    pairs = []
    for grad, other in zip(grads, others, strict=True):
        if grad is not None:
            pairs.append(left_gradient(grad, shard, other) if ctx.left else right_gradient(grad, other, shard))
    if not pairs:
        total = of_gathered if of_gathered is not None else shard.new_zeros(_whole(ctx, shard))
        pairs = [_nothing(total)]
    lefts, rights = zip(*pairs, strict=True)
    scattered: Tensor = OPS.matmul_reduce_scatter.default(
        list(lefts), list(rights), of_gathered, "sum", ctx.dim, ctx.chunks, ctx.ranks, ctx.group, None
    )
    return scattered


def _nothing(total: Tensor) -> tuple[Tensor, Tensor]:
    """Two factors whose product is as large as the tensor, and zero."""
    return total.new_zeros(*total.shape[:-1], 0), total.new_zeros(0, total.shape[-1])


def _whole(ctx: Any, shard: Tensor) -> list[int]:
    shape = list(shard.shape)
    shape[ctx.dim] *= ctx.ranks
    return shape


def _of_others(
    ctx: Any, shard: Tensor, kept: list[Tensor], others: list[Tensor], grads: list[Tensor | None]
) -> list[Tensor | None]:
    used = [grad for grad in grads if grad is not None]
    if not used:
        return [None] * ctx.count
    if not kept and shard.dim() == 2 and ctx.left and all(grad.dim() == 2 for grad in used):
        # Gathered again while it is multiplied: rows are summed over now, or the other way round.
        dim = 1 - ctx.dim % 2
        dtypes = [shard.dtype] * len(used)
        found = iter(
            OPS.all_gather_matmul.default(
                shard.t(), used, [None] * len(used), dtypes, dim, True, ctx.chunks, ctx.ranks, ctx.group, False
            )
        )
        return [None if grad is None else next(found) for grad in grads]
    gathered = kept[0] if kept else _gathered(ctx, shard)
    results: list[Tensor | None] = []
    for grad, other in zip(grads, others, strict=True):
        if grad is None:
            results.append(None)
        else:
            pair = right_gradient(grad, gathered, other) if ctx.left else left_gradient(grad, other, gathered)
            results.append(torch.matmul(*pair))
    return results


def _gathered(ctx: Any, shard: Tensor) -> Tensor:
    (gathered,) = OPS.all_gather_matmul.default(
        shard, [], [], [], ctx.dim, True, ctx.chunks, ctx.ranks, ctx.group, True
    )
    return gathered  # type: ignore[no-any-return]


# -- reductions -------------------------------------------------------------------------------------------------------


def _keep_scatter(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    lefts, rights, bias, ctx.reduce_op, ctx.dim, ctx.chunks, ctx.ranks, ctx.group = inputs[:8]
    ctx.count, ctx.bias = len(lefts), None if bias is None else bias.shape
    ctx.save_for_backward(*lefts, *rights)


def _scatter_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    lefts, rights = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
    grad = grad.to(lefts[0].dtype)
    if ctx.reduce_op == "avg":
        grad = grad / ctx.ranks
    simple = all(left.dim() > 2 or right.dim() == 2 for left, right in zip(lefts, rights, strict=True))
    others = [_transposed(right) for right in rights] if simple else []
    dtypes = [grad.dtype] * len(others)
    *left_grads, total = OPS.all_gather_matmul.default(
        grad, others, [None] * len(others), dtypes, ctx.dim, True, ctx.chunks, ctx.ranks, ctx.group, True
    )
    if not simple:
        left_grads = [torch.matmul(*left_gradient(total, *pair)) for pair in zip(lefts, rights, strict=True)]
    right_grads = [torch.matmul(*right_gradient(total, *pair)) for pair in zip(lefts, rights, strict=True)]
    bias_grad = None if ctx.bias is None else total.sum_to_size(ctx.bias)
    return left_grads, right_grads, bias_grad, *_rest(ctx)


def _keep_reduce(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    lefts, rights, bias, ctx.reduce_op, _, ctx.group = inputs[:6]
    ctx.count, ctx.bias = len(lefts), None if bias is None else bias.shape
    ctx.save_for_backward(*lefts, *rights)


def _reduce_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    lefts, rights = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
    started = _C10D.all_reduce.default(grad.to(lefts[0].dtype).contiguous(), ctx.reduce_op, ctx.group)
    total = _C10D.wait_tensor.default(started)
    pairs = list(zip(lefts, rights, strict=True))
    left_grads = [torch.matmul(*left_gradient(total, *pair)) for pair in pairs]
    right_grads = [torch.matmul(*right_gradient(total, *pair)) for pair in pairs]
    bias_grad = None if ctx.bias is None else total.sum_to_size(ctx.bias)
    return left_grads, right_grads, bias_grad, *_rest(ctx)


# -- exchanges --------------------------------------------------------------------------------------------------------


def _keep_exchange(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    tensor, others, biases, _, ctx.chunks, ctx.ranks, ctx.group, ctx.keep = inputs
    ctx.count, ctx.biases = len(others), _shapes_of("all_to_all_matmul", biases)
    ctx.save_for_backward(output[-1] if ctx.keep else tensor, *others)


def _exchange_backward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    held, *others = ctx.saved_tensors
    products = [None if grad is None else grad.to(held.dtype) for grad in grads[: ctx.count]]
    of_received = grads[-1] if ctx.keep else None
    needs_tensor, needs_others = ctx.needs_input_grad[:2]
    pairs = [(grad, _transposed(other)) for grad, other in zip(products, others, strict=True) if grad is not None]
    tensor_grad = None
    if needs_tensor:
        lefts, rights = zip(*(pairs or [_nothing(held if of_received is None else of_received)]), strict=True)
        tensor_grad = OPS.matmul_all_to_all.default(
            list(lefts), list(rights), of_received, ctx.chunks, ctx.ranks, ctx.group, None
        )
    other_grads: list[Tensor | None] = [None] * ctx.count
    if _any(needs_others):
        received = held if ctx.keep else _received(ctx, held)
        for i, (grad, other) in enumerate(zip(products, others, strict=True)):
            other_grads[i] = None if grad is None else torch.matmul(*right_gradient(grad, received, other))
    return tensor_grad, other_grads, _of_biases(ctx, products), *_rest(ctx)


def _received(ctx: Any, tensor: Tensor) -> Tensor:
    (received,) = OPS.all_to_all_matmul.default(tensor, [], [], [], ctx.chunks, ctx.ranks, ctx.group, True)
    return received  # type: ignore[no-any-return]


def _keep_sent(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    lefts, rights, bias, ctx.chunks, ctx.ranks, ctx.group = inputs[:6]
    ctx.count, ctx.bias = len(lefts), None if bias is None else bias.shape
    ctx.save_for_backward(*lefts, *rights)


def _sent_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    lefts, rights = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
    total = _received(ctx, grad.to(lefts[0].dtype))
    pairs = list(zip(lefts, rights, strict=True))
    left_grads = [torch.matmul(*left_gradient(total, *pair)) for pair in pairs]
    right_grads = [torch.matmul(*right_gradient(total, *pair)) for pair in pairs]
    bias_grad = None if ctx.bias is None else total.sum_to_size(ctx.bias)
    return left_grads, right_grads, bias_grad, *_rest(ctx)


torch.library.register_autograd("counterpoint::all_gather_matmul", _gather_backward, setup_context=_keep_gather)
torch.library.register_autograd("counterpoint::matmul_reduce_scatter", _scatter_backward, setup_context=_keep_scatter)
torch.library.register_autograd("counterpoint::matmul_all_reduce", _reduce_backward, setup_context=_keep_reduce)
torch.library.register_autograd("counterpoint::all_to_all_matmul", _exchange_backward, setup_context=_keep_exchange)
torch.library.register_autograd("counterpoint::matmul_all_to_all", _sent_backward, setup_context=_keep_sent)
