"""A plain training loop that adopts Counterpoint in two lines, those marked with <--.

    torchrun --nproc-per-node 2 examples/plain_loop.py

What becomes of its gradients on a cluster, told on this machine without one:

    counterpoint explain examples/plain_loop.py:build --parallel replicate --world-size 64
"""

import torch
import torch.distributed as dist
from torch import nn

import counterpoint


def build():
    """The model and one batch, as `counterpoint explain` and `counterpoint plan` take them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 1))
    return Regression(model), torch.randn(64, 32)


class Regression(nn.Module):
    """Predicts the mean of its inputs."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return nn.functional.mse_loss(self.layers(x).squeeze(-1), x.mean(dim=-1))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, _ = build()
    model = counterpoint.replicate(model)  # <-- gradients are averaged by collectives that are part of the graph
    step = torch.compile(model, backend="counterpoint")  # <-- and these are fused, overlapped and accounted for
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(rank)  # every rank has data of its own
    for number in range(20):
        loss = step(torch.randn(64, 32, generator=data))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and number % 5 == 4:
            print(f"step {number + 1}, loss {loss.item():.4f}")
    if rank == 0:
        for record in counterpoint.reports():
            print(record)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
