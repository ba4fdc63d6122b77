"""On one host: operands are multiplied where their ranks have put them, and sums are added from where they were made.

Nothing travels. A rank copies its shard into memory that the others see, once, and multiplies its own while they do
the same; a part of a reduction is computed into memory from which the rank that it belongs to adds it.
"""

from __future__ import annotations

from torch import Tensor

from counterpoint.runtime.pipelined.arithmetic import accumulation_dtype
from counterpoint.runtime.pipelined.gathers import Gather, Products
from counterpoint.runtime.pipelined.scatters import Partial
from counterpoint.runtime.shared_memory import Workspace


def gather_matmul(gather: Gather, workspace: Workspace) -> list[Tensor]:
    """The products, and the gathered operand where it is kept."""
    return _multiply_lent(
        gather, gather.shard, (0, gather.shard.shape[0]), _gathered_scale(gather, workspace), workspace
    )


def exchange_matmul(tensor: Tensor, part: Gather, workspace: Workspace) -> list[Tensor]:
    """The same where every rank lends another part to each; `part` is as large as one of them."""
    return _multiply_lent(part, tensor, (workspace.rank * part.extent, part.extent), None, workspace)


def _multiply_lent(
    gather: Gather, lent: Tensor, rows: tuple[int, int], scale: Tensor | None, workspace: Workspace
) -> list[Tensor]:
    """Lend a tensor to all, multiply one's own rows of it, then every other's."""
    dim, extent = gather.dim, gather.extent
    gathered = gather.gathered() if gather.keep else None
    products = Products(gather, scale)
    with workspace.borrow(lent.shape, lent.dtype) as loan:
        loan.mine.copy_(lent)
        loan.publish()
        for rank in (workspace.rank, *loan.others()):
            piece = loan.of(rank).narrow(0, *rows)
            products.add(piece, rank * extent)
            if gathered is not None:
                gathered.narrow(dim, rank * extent, extent).copy_(piece)
    results = products.finish()
    return results if gathered is None else [*results, gathered]


def _gathered_scale(gather: Gather, workspace: Workspace) -> Tensor | None:
    scale = gather.shard_scale
    if scale is None or not gather.scale_travels:
        return scale
    line = workspace.all_gather(scale)
    return line.reshape(workspace.size, *scale.shape).movedim(0, gather.dim - 1).flatten(gather.dim - 1, gather.dim)


def matmul_scatter(partial: Partial, dim: int, reduce_op: str, workspace: Workspace) -> Tensor:
    """This rank's part of the reduced sum."""
    rank, ranks = workspace.rank, workspace.size
    extent = partial.shape[dim] // ranks
    own = partial.room((dim, extent))
    with workspace.borrow((ranks - 1, *own.shape), own.dtype, parts=ranks - 1) as loan:
        for distance in range(1, ranks):
            owner = (rank + distance) % ranks
            partial.part_into(loan.mine[distance - 1], dim, owner * extent, extent)
            loan.publish()
        partial.part_into(own, dim, rank * extent, extent)
        total = own if ranks == 2 else own.to(accumulation_dtype(own.dtype))
        for distance in range(1, ranks):
            peer = (rank - distance) % ranks
            total.add_(loan.of(peer, distance - 1)[distance - 1])
    return (total.div_(ranks) if reduce_op == "avg" else total).to(own.dtype)


def matmul_exchange(partial: Partial, workspace: Workspace) -> Tensor:
    """What every rank computes for this one: parts for the others first, each lent as soon as it is there."""
    rank, ranks, out = workspace.rank, workspace.size, partial.room()
    extent, dim = out.shape[0] // ranks, -out.dim()
    with workspace.borrow((ranks - 1, extent, *out.shape[1:]), out.dtype, parts=ranks - 1) as loan:
        for distance in range(1, ranks):
            partial.part_into(loan.mine[distance - 1], dim, (rank + distance) % ranks * extent, extent)
            loan.publish()
        partial.part_into(out.narrow(0, rank * extent, extent), dim, rank * extent, extent)
        for distance in range(1, ranks):
            peer = (rank - distance) % ranks
            out.narrow(0, peer * extent, extent).copy_(loan.of(peer, distance - 1)[distance - 1])
    return out


def matmul_all_reduce(partial: Partial, reduce_op: str, workspace: Workspace) -> Tensor:
    """The reduced sum: its kernel leaves nothing to hide, since the memory's bandwidth is all that it takes."""
    total = partial.all()
    return workspace.all_reduce(total, reduce_op, out=total)
