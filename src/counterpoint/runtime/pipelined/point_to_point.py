"""Pipelined over messages between ranks: whatever has arrived is multiplied while the rest is on its way.

A gather multiplies its own shard first. Every rank sends its shard to each other one, cut into chunks: the first chunk
to all, the next to all, and so on, so that parts arrive evenly from everywhere and every link carries the same.

A reduction computes first what other ranks wait for, and its own part last, while theirs is on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

from counterpoint.runtime.pipelined.arithmetic import accumulation_dtype
from counterpoint.runtime.pipelined.exchange import Inbox, open_exchange
from counterpoint.runtime.pipelined.failures import failing_as
from counterpoint.runtime.pipelined.gathers import Gather, Products
from counterpoint.runtime.pipelined.plain import gather_tensor
from counterpoint.runtime.pipelined.scatters import Partial


class Range(NamedTuple):
    """A part of a dim."""

    start: int
    length: int


def cut(extent: int, chunks: int) -> list[Range]:
    """A dim in so many parts that differ by one at most; fewer where there is less to cut, none where nothing."""
    count = max(1, min(chunks, extent))
    bounds = [extent * i // count for i in range(count + 1)]
    return [Range(a, b - a) for a, b in pairwise(bounds) if b > a]


class Step(NamedTuple):
    """What this rank sends and receives at once."""

    chunk: Range
    target: int
    source: int


def steps(rank: int, ranks: int, chunks: list[Range], towards: int) -> Iterator[Step]:
    """Chunk by chunk to each other rank. `towards` is the direction: where the next peer for sending is."""
    for chunk in chunks:
        for distance in range(1, ranks):
            yield Step(chunk, (rank + towards * distance) % ranks, (rank - towards * distance) % ranks)


def gather_matmul(gather: Gather, group: dist.ProcessGroup, operator: str) -> list[Tensor]:
    """The products, and the gathered operand where it is kept."""
    shard = gather.shard.contiguous()
    messages = {chunk: shard.narrow(gather.dim, *chunk).contiguous() for chunk in cut(gather.extent, gather.chunks)}
    scale = _gathered_scale(gather, group)
    return _multiply_arriving(gather, shard, lambda step: messages[step.chunk], scale, group, operator)


def exchange_matmul(tensor: Tensor, part: Gather, group: dist.ProcessGroup, operator: str) -> list[Tensor]:
    """The same where every rank is sent another part; `part` is as large as one of them."""
    extent, whole = part.extent, tensor.contiguous()

    def message(step: Step) -> Tensor:
        return whole.narrow(0, step.target * extent + step.chunk.start, step.chunk.length)

    return _multiply_arriving(part, whole.narrow(0, group.rank() * extent, extent), message, None, group, operator)


def _multiply_arriving(
    gather: Gather,
    own: Tensor,
    message: Callable[[Step], Tensor],
    scale: Tensor | None,
    group: dist.ProcessGroup,
    operator: str,
) -> list[Tensor]:
    """Send what each step is to send, multiply one's own part, then every other as it comes."""
    dim, rank = gather.dim, group.rank()
    plan = list(steps(rank, gather.ranks, cut(gather.extent, gather.chunks), -1))
    gathered = gather.gathered() if gather.keep else None
    places = rooms(gather, plan, gathered)
    with failing_as(operator, group):
        exchange = open_exchange(group, operator, [Inbox(p, s.source) for p, s in zip(places, plan, strict=True)])
    for i, step in enumerate(plan):
        exchange.send(i, message(step), step.target)
    products = Products(gather, scale)
    products.add(own, rank * gather.extent)
    if gathered is not None:
        gathered.narrow(dim, rank * gather.extent, gather.extent).copy_(own)
    for i, (step, place) in enumerate(zip(plan, places, strict=True)):
        exchange.receive(i)
        start = step.source * gather.extent + step.chunk.start
        products.add(place, start)
        if gathered is not None:
            keep(place, gathered, dim, start)
    exchange.finish()
    results = products.finish()
    return results if gathered is None else [*results, gathered]


def rooms(gather: Gather, plan: list[Step], gathered: Tensor | None) -> list[Tensor]:
    """Where each step's part arrives: in the gathered operand where it lies in one piece there."""
    places = []
    for step in plan:
        if gathered is not None:
            place = gathered.narrow(gather.dim, step.source * gather.extent + step.chunk.start, step.chunk.length)
            if place.is_contiguous():
                places.append(place)
                continue
        shape = list(gather.shard.shape)
        shape[gather.dim] = step.chunk.length
        places.append(gather.shard.new_empty(shape))
    return places


def keep(place: Tensor, gathered: Tensor, dim: int, start: int) -> None:
    """Copy a part to where it belongs in the gathered operand, unless it has arrived there."""
    if place.untyped_storage().data_ptr() != gathered.untyped_storage().data_ptr():
        gathered.narrow(dim, start, place.shape[dim]).copy_(place)


def _gathered_scale(gather: Gather, group: dist.ProcessGroup) -> Tensor | None:
    """A scale by rows is small beside the rows: it is gathered ahead of them, all at once."""
    if gather.shard_scale is None or not gather.scale_travels:
        return gather.shard_scale
    return gather_tensor(gather.shard_scale, gather.dim, gather.ranks, group)


def matmul_scatter(
    partial: Partial, dim: int, reduce_op: str, chunks: int, group: dist.ProcessGroup, operator: str
) -> Tensor:
    """This rank's part of the reduced sum."""
    rank, ranks = group.rank(), group.size()
    extent = partial.shape[dim] // ranks
    plan = list(steps(rank, ranks, cut(extent, chunks), 1))
    rooms = [partial.room((dim, step.chunk.length)) for step in plan]
    with failing_as(operator, group):
        exchange = open_exchange(group, operator, [Inbox(r, s.source) for r, s in zip(rooms, plan, strict=True)])
    for i, step in enumerate(plan):
        exchange.send(i, partial.part(dim, step.target * extent + step.chunk.start, step.chunk.length), step.target)
    own = partial.part(dim, rank * extent, extent)
    # With two ranks there is one addition, which rounds once whatever it adds in.
    total = own if ranks == 2 else own.to(accumulation_dtype(own.dtype))
    for i, (step, room) in enumerate(zip(plan, rooms, strict=True)):
        exchange.receive(i)
        total.narrow(dim, *step.chunk).add_(room)
    exchange.finish()
    return (total.div_(ranks) if reduce_op == "avg" else total).to(own.dtype)


def matmul_exchange(partial: Partial, chunks: int, group: dist.ProcessGroup, operator: str) -> Tensor:
    """What every rank computes for this one: parts for the others first, each sent as soon as it is there."""
    rank, ranks, out = group.rank(), group.size(), partial.room()
    extent, dim = out.shape[0] // ranks, -out.dim()
    plan = list(steps(rank, ranks, cut(extent, chunks), 1))
    rooms = [out.narrow(0, step.source * extent + step.chunk.start, step.chunk.length) for step in plan]
    with failing_as(operator, group):
        exchange = open_exchange(group, operator, [Inbox(r, s.source) for r, s in zip(rooms, plan, strict=True)])
    for i, step in enumerate(plan):
        exchange.send(i, partial.part(dim, step.target * extent + step.chunk.start, step.chunk.length), step.target)
    partial.part_into(out.narrow(0, rank * extent, extent), dim, rank * extent, extent)
    for i in range(len(plan)):
        exchange.receive(i)
    exchange.finish()
    return out


def matmul_all_reduce(partial: Partial, reduce_op: str, chunks: int, group: dist.ProcessGroup, operator: str) -> Tensor:
    """The reduced sum: part by part, each on its way while the next is computed."""
    rows = partial.as_rows()
    out = rows.room()
    started = []
    for chunk in cut(out.shape[0], chunks):
        place = rows.part_into(out.narrow(0, *chunk), -out.dim(), *chunk)
        with failing_as(operator, group):
            started.append(dist.all_reduce(place, group=group, async_op=True))
    for work in started:
        with failing_as(operator, group):
            if work is not None:
                work.wait()
    return (out.div_(group.size()) if reduce_op == "avg" else out).view(partial.shape)
