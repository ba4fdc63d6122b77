"""Collectives in shared memory on real ranks, bit by bit against the reference semantics, in every type and form."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from counterpoint.ir import semantics
from counterpoint.ir.ops import Kind
from counterpoint.runtime.shared_memory import Workspace, rendezvous
from counterpoint.runtime.shared_memory.library import OPERATIONS, TYPES, supports

pytestmark = [pytest.mark.cxx]

SLOT_BYTES = 16 * 1024
# Bytes: nothing, less than a cache line, odd, around one slot, many slots.
SIZES = (0, 1, 15, 1000, SLOT_BYTES - 1, SLOT_BYTES + 1, 3 * SLOT_BYTES + 77)
OPS = torch.ops.counterpoint


def small_slots() -> Workspace:
    """A workspace in which many sizes take several slots."""
    return rendezvous(slot_bytes=SLOT_BYTES)


def inputs_of(world: int, shape: Sequence[int], dtype: torch.dtype, seed: int) -> list[Tensor]:
    """The same inputs of all ranks on every rank. Whatever bits, as far as that makes numbers."""
    made = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return [torch.rand(shape, generator=made) > 0.5 for _ in range(world)]
    if dtype.is_floating_point:
        return [(torch.randn(shape, generator=made) * 3).to(dtype) for _ in range(world)]
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return [torch.randint(least, most, tuple(shape), generator=made, dtype=dtype) for _ in range(world)]


def reduced(op: str, inputs: Sequence[Tensor]) -> Tensor:
    """What is promised: in rank order, and of 16-bit floats in float32, rounded once."""
    dtype = inputs[0].dtype
    wide = [value.float() if dtype in (torch.bfloat16, torch.float16) else value for value in inputs]
    return semantics.reduce(op, wide).to(dtype)


def same(one: Tensor, other: Tensor) -> bool:
    one, other = one.contiguous().reshape(-1), other.contiguous().reshape(-1)
    return one.dtype is other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def cases() -> Iterator[tuple[torch.dtype, str]]:
    return ((dtype, op) for dtype, op in itertools.product(TYPES, OPERATIONS) if supports(dtype, op))


def job_all_reduces() -> list[str]:
    """Every type and reduction, both algorithms, in every form; the cases that came out wrong."""
    rank, world, wrong = dist.get_rank(), dist.get_world_size(), []
    workspace = small_slots()
    for number, (dtype, op) in enumerate(cases()):
        # A few sizes for each type, all sizes over all types.
        for nbytes in (SIZES[number % len(SIZES)], SIZES[(number * 3 + 1) % len(SIZES)]):
            inputs = inputs_of(world, (nbytes // dtype.itemsize,), dtype, number)
            expected, mine = reduced(op, inputs), inputs[rank]
            for run in (workspace.one_shot_all_reduce, workspace.two_shot_all_reduce, workspace.all_reduce):
                fresh, place, out = run(mine, op), mine.clone(), torch.empty_like(mine)
                run(place, op, out=place)
                run(mine, op, out=out)
                found = {"functional": fresh, "in place": place, "out": out}
                wrong += [
                    f"{run.__name__} {dtype} {op} {nbytes} {k}" for k, v in found.items() if not same(v, expected)
                ]
    return wrong


def job_reduce_scatters() -> list[str]:
    rank, world, wrong = dist.get_rank(), dist.get_world_size(), []
    workspace = small_slots()
    for number, (dtype, op) in enumerate(cases()):
        rows = SIZES[number % len(SIZES)] // dtype.itemsize // 3
        inputs = inputs_of(world, (rows * world, 3), dtype, number)
        expected = reduced(op, inputs)[rank * rows : (rank + 1) * rows]
        own_rows = inputs[rank].clone()
        place = own_rows[rank * rows : (rank + 1) * rows]
        workspace.reduce_scatter(own_rows, op, out=place)
        found = {"functional": workspace.reduce_scatter(inputs[rank], op), "in place": place}
        wrong += [f"{dtype} {op} {rows} {k}" for k, v in found.items() if not same(v, expected)]
    return wrong


def job_all_gathers() -> list[str]:
    """Types that the kernels do not reduce are gathered all the same."""
    rank, world, wrong = dist.get_rank(), dist.get_world_size(), []
    workspace = small_slots()
    types = (*TYPES, torch.complex64, torch.float8_e4m3fn)
    for dtype, nbytes in itertools.product(types, SIZES):
        inputs = [value.to(dtype) for value in inputs_of(world, (nbytes // dtype.itemsize,), torch.float32, nbytes)]
        whole = torch.cat(inputs).clone()
        place = torch.zeros_like(whole)
        part = place.chunk(world)[rank] if len(place) else place
        part.copy_(inputs[rank])
        workspace.all_gather(part, out=place)
        found = {"functional": workspace.all_gather(inputs[rank]), "in place": place}
        wrong += [f"{dtype} {nbytes} {k}" for k, v in found.items() if not same(v, whole)]
    return wrong


def job_layouts() -> list[str]:
    """Inputs and outputs that are transposed, strided, expanded, not aligned, without dimensions."""
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = inputs_of(world, (6, 8), torch.float32, 1)
    looks: dict[str, Callable[[Tensor], Tensor]] = {
        "transposed": lambda t: t.t(),
        "strided": lambda t: t[:, ::3],
        "expanded": lambda t: t[0].expand(4, 8),
        "unaligned": lambda t: t.flatten()[1:],
        "scalar": lambda t: t[1, 2],
        "channels last": lambda t: t.view(1, 2, 4, 6).contiguous(memory_format=torch.channels_last),
    }
    workspace, wrong = small_slots(), []
    for name, look in looks.items():
        views = [look(value) for value in rows]
        expected = reduced("sum", views)
        target = torch.zeros(2 * expected.numel())[::2].view(expected.shape)
        workspace.all_reduce(views[rank], out=target)
        if not (same(workspace.two_shot_all_reduce(views[rank]), expected) and same(target, expected)):
            wrong.append(name)
        whole = semantics.MEANING[Kind.ALL_GATHER](views, {})[0]
        if not same(workspace.all_gather(views[rank]), whole):
            wrong.append(f"gathered {name}")
    half = [value.t().bfloat16() for value in rows]
    if not same(workspace.reduce_scatter(half[rank]), reduced("sum", half).chunk(world)[rank]):
        wrong.append("scattered")
    return wrong


def job_not_numbers() -> list[Any]:
    """A NaN on one rank is a NaN in every maximum and minimum, as in the reference."""
    mine = torch.tensor([float("nan"), 1.0, float("inf")] if dist.get_rank() else [0.0, float("nan"), 1.0])
    workspace = small_slots()
    return [workspace.all_reduce(mine, op).isnan().tolist() for op in ("max", "min", "sum")]


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("job", [job_all_reduces, job_reduce_scatters, job_all_gathers, job_layouts])
def test_values_are_the_reference_bit_by_bit(ranks, world: int, job: Callable[[], list[str]]) -> None:
    assert ranks(world).run(job) == [[]] * world


def test_a_nan_is_kept(ranks) -> None:
    assert ranks(2).run(job_not_numbers) == [[[True, True, False]] * 3] * 2
