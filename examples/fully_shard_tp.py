"""Sharded parameters and tensor parallelism on a mesh of two dimensions.

    torchrun --nproc-per-node 4 examples/fully_shard_tp.py     two groups of two
    torchrun --nproc-per-node 2 examples/fully_shard_tp.py     one group of two, so nothing is sharded

What becomes of the collectives of both dimensions, on 64 ranks and without any:

    counterpoint explain examples/fully_shard_tp.py:build --world-size 64
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import counterpoint

TENSOR_PARALLEL = 2
WIDTH, LENGTH, BATCH = 64, 16, 8


class Block(nn.Module):
    """A norm and two matmuls, around a skip connection."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential()
        self.mlp.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.mlp.act = nn.GELU()
        self.mlp.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    """Blocks, one after the other."""

    def __init__(self, blocks=2):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def parallelise(model, mesh):
    """Torch's tensor parallelism, then `fully_shard` under torch's name and with its arguments."""
    plan = {
        # Between blocks every rank holds a part of the sequence; inside one, all of it and a part of the weights.
        "norm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], plan)
        counterpoint.fully_shard(block, mesh=mesh["dp"])
    return counterpoint.fully_shard(model, mesh=mesh["dp"])


def make_mesh():
    """All ranks: data parallel times tensor parallel."""
    shape = (dist.get_world_size() // TENSOR_PARALLEL, TENSOR_PARALLEL)
    return init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))


def build():
    """The parallel model and this rank's part of a batch."""
    torch.manual_seed(0)
    return parallelise(Model(), make_mesh()), torch.randn(BATCH, LENGTH // TENSOR_PARALLEL, WIDTH)


def main():
    dist.init_process_group("gloo")
    mesh = make_mesh()
    torch.manual_seed(0)
    model = parallelise(Model(), mesh)
    step = torch.compile(model, backend="counterpoint")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(mesh["dp"].get_local_rank())  # the ranks of a tensor-parallel group share data
    for number in range(10):
        x = torch.randn(BATCH, LENGTH, WIDTH, generator=data)
        own = x.chunk(TENSOR_PARALLEL, dim=1)[mesh["tp"].get_local_rank()]
        loss = (step(own) - own.flip(-1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and number % 5 == 4:
            print(f"step {number + 1}, loss {loss.item():.4f}")
    if dist.get_rank() == 0:
        for record in counterpoint.reports():
            print(record)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
