"""Calls of the pipelined operators beside the plain sequence that each stands for, to be made on real ranks.

A case is data: it travels to every rank, which draws its own operands from the case and its rank, runs both, and
answers what differs. Operands are small whole numbers, so that sums come out the same in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint.cost.capabilities import Capabilities, Capability, absent
from counterpoint.ir.pipelined import OPS
from counterpoint.runtime.pipelined import operators  # noqa: F401
from counterpoint.runtime.probe import PROBES

C10D = torch.ops._c10d_functional
WAIT = C10D.wait_tensor.default


@dataclass(frozen=True, kw_only=True)
class GatherCase:
    """An all-gather and its products."""

    shard: tuple[int, ...]
    others: tuple[tuple[int, ...], ...]
    dim: int = 0
    left: bool = True
    biases: tuple[tuple[int, ...] | None, ...] | None = None
    dtype: torch.dtype = torch.float32
    out_dtypes: tuple[torch.dtype, ...] | None = None
    chunks: int = 1
    keep: bool = False
    transposed: bool = False
    """The operands are views of their transposes."""


@dataclass(frozen=True, kw_only=True)
class ScatterCase:
    """Products, their sum and its reduction; `dim` None for an all-reduce."""

    lefts: tuple[tuple[int, ...], ...]
    rights: tuple[tuple[int, ...], ...]
    dim: int | None = 0
    bias: tuple[int, ...] | None = None
    reduce_op: str = "sum"
    dtype: torch.dtype = torch.float32
    out_dtype: torch.dtype | None = None
    chunks: int = 1
    transposed: bool = False


@dataclass
class Draw:
    """Operands of one rank, the same each time they are drawn."""

    dtype: torch.dtype
    transposed: bool = False
    generator: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self.generator.manual_seed(77 + dist.get_rank())

    def one(self, shape: Sequence[int]) -> Tensor:
        """Whole numbers of one digit."""
        if self.transposed:
            return self.plain((*shape[:-2], shape[-1], shape[-2])).transpose(-1, -2)
        return self.plain(shape)

    def plain(self, shape: Sequence[int]) -> Tensor:
        """The same in row-major order."""
        return torch.randint(-3, 4, tuple(shape), generator=self.generator).to(self.dtype)


def drawer(draw: Draw, given: Sequence[Tensor] | None) -> Callable[..., Any]:
    """Hands out operands by shape: the given ones in their order, or drawn ones; None for no shape."""
    operands = iter(given) if given is not None else None

    def one(shape: Sequence[int] | None, plain: bool = False) -> Tensor | None:
        if shape is None or operands is not None:
            return None if shape is None else next(operands)
        return draw.plain(shape) if plain else draw.one(shape)

    return one


def placed(values: Sequence[Tensor | None], device: str) -> list[Tensor | None]:
    """The same tensors on a device, with their strides."""
    return [None if value is None else value.to(device) for value in values]


def world() -> tuple[int, str]:
    """Size and name of the group that cases run in."""
    return dist.get_world_size(), dist.group.WORLD.group_name


def gathered(tensor: Tensor, dim: int) -> Tensor:
    """All ranks' tensors along a dim."""
    ranks, group = world()
    if tensor.dtype is torch.float8_e4m3fn:
        # Backends do not know eight-bit floats.
        return gathered(tensor.contiguous().view(torch.uint8), dim).view(tensor.dtype)
    line = WAIT(C10D.all_gather_into_tensor.default(tensor.contiguous(), ranks, group))
    return line if dim % tensor.dim() == 0 else torch.cat(line.chunk(ranks), dim)


def scattered(total: Tensor, dim: int | None, reduce_op: str) -> Tensor:
    """This rank's part of all ranks' sum; all of it for no dim."""
    ranks, group = world()
    if dim is None:
        return WAIT(C10D.all_reduce.default(total, reduce_op, group))
    line = total if dim % total.dim() == 0 else torch.cat(total.chunk(ranks, dim))
    return WAIT(C10D.reduce_scatter_tensor.default(line.contiguous(), reduce_op, ranks, group))


def run_gather(case: GatherCase, device: str = "cpu", given: Any = None) -> tuple[list[Tensor], list[Tensor]]:
    """The results of the plain sequence on the CPU, and of the operator; of given operands, or drawn ones."""
    one = drawer(Draw(case.dtype, case.transposed), given)
    shard, others = one(case.shard), [one(shape) for shape in case.others]
    biases = [one(shape, plain=True) for shape in case.biases or [None] * len(others)]
    dtypes = case.out_dtypes or (case.dtype,) * len(others)
    whole = gathered(shard, case.dim)
    expected = []
    for other, bias, dtype in zip(others, biases, dtypes, strict=True):
        product = torch.matmul(*((whole, other) if case.left else (other, whole)))
        expected.append((product if bias is None else product + bias).to(dtype))
    ranks, group = world()
    operands = (shard.to(device), placed(others, device), placed(biases, device), list(dtypes))
    found = OPS.all_gather_matmul.default(*operands, case.dim, case.left, case.chunks, ranks, group, case.keep)
    return [*expected, whole] if case.keep else expected, [result.cpu() for result in found]


def run_scatter(case: ScatterCase, device: str = "cpu", given: Any = None) -> tuple[list[Tensor], list[Tensor]]:
    """The same for a reduction of products."""
    one = drawer(Draw(case.dtype, case.transposed), given)
    lefts, rights = [one(shape) for shape in case.lefts], [one(shape) for shape in case.rights]
    bias = one(case.bias, plain=True)
    total = sum(torch.matmul(left, right) for left, right in zip(lefts, rights, strict=True))
    total = total if bias is None else total + bias
    expected = scattered(total.to(case.out_dtype or case.dtype), case.dim, case.reduce_op)
    ranks, group = world()
    operands = (placed(lefts, device), placed(rights, device), *placed([bias], device), case.reduce_op)
    if case.dim is None:
        found = OPS.matmul_all_reduce.default(*operands, case.chunks, group, case.out_dtype)
    else:
        found = OPS.matmul_reduce_scatter.default(*operands, case.dim, case.chunks, ranks, group, case.out_dtype)
    return [expected], [found.cpu()]


def check(case: Any, device: str = "cpu") -> list[str]:
    """What differs between the two on this rank."""
    expected, found = (run_gather if isinstance(case, GatherCase) else run_scatter)(case, device)
    if len(expected) != len(found):
        return [f"{len(found)} results instead of {len(expected)}"]
    return [line for i, pair in enumerate(zip(expected, found, strict=True)) for line in differences(i, *pair)]


def differences(index: int, expected: Tensor, found: Tensor, strides: bool = True) -> list[str]:
    """In what the operator's result is not the plain one."""
    if expected is None or found is None:
        return [] if expected is found else [f"result {index}: {found} instead of {expected}"]
    lines = [
        f"result {index}: {name} is {getattr(found, name)} instead of {getattr(expected, name)}"
        for name in ("shape", "dtype", "device")
        if getattr(found, name) != getattr(expected, name)
    ]
    if lines:
        return lines
    if strides and found.stride() != expected.contiguous().stride():
        lines.append(f"result {index}: strides are {found.stride()} instead of {expected.contiguous().stride()}")
    if not torch.equal(found, expected):
        worst = (found.double() - expected.double()).abs().max()
        lines.append(f"result {index}: values differ by up to {worst}")
    return lines


def settle(lowering: str, device: str = "cpu") -> None:
    """Let the world's calls be run in one way: only the capability that it needs is there."""
    given = {name: absent("not in this test") for name in ("messages", "shared_memory", "symmetric_memory")}
    if lowering != "plain":
        given[lowering] = Capability(True, "asked for by the test")
    PROBES.settle(dist.group.WORLD, torch.device(device), Capabilities(**given))


def gradients(case: Any, pipelined: bool) -> list[Tensor | None]:
    """The gradients of all operands for one loss, through the plain sequence or the operator."""
    draw = Draw(case.dtype, case.transposed)
    if isinstance(case, GatherCase):
        operands = [draw.one(case.shard), *(draw.one(shape) for shape in case.others)]
        operands += [draw.plain(shape) for shape in case.biases or () if shape is not None]
    else:
        operands = [draw.one(shape) for shape in (*case.lefts, *case.rights)]
        operands += [draw.plain(case.bias)] if case.bias is not None else []
    for operand in operands:
        operand.requires_grad_()
    expected, found = (run_gather if isinstance(case, GatherCase) else run_scatter)(case, given=operands)
    results = found if pipelined else expected
    draw.generator.manual_seed(5)
    loss = sum((result * draw.plain(result.shape).to(result.dtype)).sum() for result in results)
    loss.backward()
    return [operand.grad for operand in operands]


def check_gradients(cases: Sequence[Any], lowering: str) -> dict[str, list[str]]:
    """The cases whose gradients differ on this rank, each with how."""
    settle(lowering)
    found = {}
    for case in cases:
        pairs = zip(gradients(case, False), gradients(case, True), strict=True)
        lines = [line for i, (one, other) in enumerate(pairs) for line in differences(i, one, other, strides=False)]
        found |= {repr(case): lines} if lines else {}
    return found


def check_all(cases: Sequence[Any], lowering: str, device: str = "cpu") -> dict[str, list[str]]:
    """The cases that differ on this rank, each with how."""
    settle(lowering, device)
    found = {repr(case): check(case, device) for case in cases}
    return {case: lines for case, lines in found.items() if lines}
