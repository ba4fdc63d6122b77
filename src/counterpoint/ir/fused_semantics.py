"""What the pipelined operators mean, in plain arithmetic: from all ranks' arguments to all ranks' results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from counterpoint.ir.semantics import reduce

Arguments = Mapping[str, Any]

_SCALED = torch.ops.aten._scaled_mm.default


def _product(left: Tensor, right: Tensor, bias: Tensor | None, dtype: torch.dtype | None) -> Tensor:
    product = torch.matmul(left, right)
    total = product if bias is None else product + bias
    return total.to(dtype or left.dtype).contiguous()


def _scaled_product(
    left: Tensor,
    right: Tensor,
    left_scale: Tensor,
    right_scale: Tensor,
    bias: Tensor | None,
    result_scale: Tensor | None,
    dtype: torch.dtype | None,
    fast: bool,
) -> Tensor:
    scale = left_scale if left_scale.numel() == 1 else left_scale.reshape(-1, 1)
    rows = left.reshape(-1, left.shape[-1])
    product: Tensor = _SCALED(rows, right, scale, right_scale, bias, result_scale, dtype, fast)
    return product.reshape(*left.shape[:-1], right.shape[-1])


def gathered_scale(scale: Tensor, shard: Tensor, dim: int, ranks: Sequence[Tensor]) -> Tensor:
    """The scale of what was gathered: one by rows of the shard is gathered with it, another is used as it is."""
    if scale.numel() != 1 and scale.shape[:-1] == shard.shape[:-1]:
        return torch.cat(list(ranks), dim)
    return scale


def _all_gather_matmul(ranks: Sequence[Arguments]) -> list[list[Tensor]]:
    gathered = torch.cat([a["shard"] for a in ranks], ranks[0]["gather_dim"])
    results = []
    for a in ranks:
        products = []
        for other, bias, dtype in zip(a["others"], a["biases"], a["out_dtypes"], strict=True):
            left, right = (gathered, other) if a["gathered_left"] else (other, gathered)
            products.append(_product(left, right, bias, dtype))
        results.append([*products, gathered.clone()] if a["keep_gathered"] else products)
    return results


def _all_gather_scaled_matmul(ranks: Sequence[Arguments]) -> list[list[Tensor]]:
    gathered = torch.cat([a["shard"] for a in ranks], ranks[0]["gather_dim"])
    results = []
    for a in ranks:
        scale = gathered_scale(a["shard_scale"], a["shard"], a["gather_dim"], [b["shard_scale"] for b in ranks])
        lists = ("others", "scales", "biases", "result_scales", "out_dtypes", "fast_accum")
        products = [
            _scaled_product(gathered, other, scale, own, bias, result_scale, dtype, fast)
            for other, own, bias, result_scale, dtype, fast in zip(*(a[name] for name in lists), strict=True)
        ]
        results.append([*products, gathered.clone()] if a["keep_gathered"] else products)
    return results


def _sum_of_products(a: Arguments) -> Tensor:
    pairs = list(zip(a["lefts"], a["rights"], strict=True))
    first = _product(*pairs[0], a["bias"], None)
    return sum((_product(*pair, None, None) for pair in pairs[1:]), first).to(a["out_dtype"] or first.dtype)


def _sum_of_scaled_products(a: Arguments) -> Tensor:
    lists = ("lefts", "rights", "left_scales", "right_scales")
    products = [
        _scaled_product(
            left, right, scale, other, None if i else a["bias"], a["result_scale"], a["out_dtype"], a["fast_accum"]
        )
        for i, (left, right, scale, other) in enumerate(zip(*(a[name] for name in lists), strict=True))
    ]
    return sum(products[1:], products[0])


def _scattered(partials: Sequence[Tensor], a: Arguments) -> list[Tensor]:
    total = reduce(a["reduce_op"], partials)
    return [part.contiguous() for part in total.tensor_split(len(partials), a["scatter_dim"])]


def _matmul_reduce_scatter(ranks: Sequence[Arguments]) -> list[Tensor]:
    return _scattered([_sum_of_products(a) for a in ranks], ranks[0])


def _scaled_matmul_reduce_scatter(ranks: Sequence[Arguments]) -> list[Tensor]:
    return _scattered([_sum_of_scaled_products(a) for a in ranks], ranks[0])


def _matmul_all_reduce(ranks: Sequence[Arguments]) -> list[Tensor]:
    total = reduce(ranks[0]["reduce_op"], [_sum_of_products(a) for a in ranks])
    return [total.clone() for _ in ranks]


def _exchanged(tensors: Sequence[Tensor]) -> list[Tensor]:
    parts = [tensor.tensor_split(len(tensors)) for tensor in tensors]
    return [torch.cat([part[rank] for part in parts]) for rank in range(len(tensors))]


def _all_to_all_matmul(ranks: Sequence[Arguments]) -> list[list[Tensor]]:
    results = []
    for a, received in zip(ranks, _exchanged([a["tensor"] for a in ranks]), strict=True):
        lists = zip(a["others"], a["biases"], a["out_dtypes"], strict=True)
        products = [_product(received, other, bias, dtype) for other, bias, dtype in lists]
        results.append([*products, received] if a["keep_received"] else products)
    return results


def _matmul_all_to_all(ranks: Sequence[Arguments]) -> list[Tensor]:
    return _exchanged([_sum_of_products(a) for a in ranks])


FUSED_MEANING: Mapping[str, Callable[[Sequence[Arguments]], list[Any]]] = MappingProxyType(
    {
        "counterpoint::all_gather_matmul": _all_gather_matmul,
        "counterpoint::all_gather_scaled_matmul": _all_gather_scaled_matmul,
        "counterpoint::matmul_reduce_scatter": _matmul_reduce_scatter,
        "counterpoint::scaled_matmul_reduce_scatter": _scaled_matmul_reduce_scatter,
        "counterpoint::matmul_all_reduce": _matmul_all_reduce,
        "counterpoint::all_to_all_matmul": _all_to_all_matmul,
        "counterpoint::matmul_all_to_all": _matmul_all_to_all,
    }
)
"""By qualified name: the result of each rank, given the arguments of each rank."""
