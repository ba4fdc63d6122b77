"""PyTorch's DistributedDataParallel as it is, with its gradients reduced inside the graph where they can be fused.

    torchrun --nproc-per-node 2 examples/ddp.py

DDP usually reduces in C++ hooks, which no compiler sees. Two settings of torch change that: its Python reducer, and
compiled autograd, which makes a graph of the backward and of the reductions in it. `counterpoint.replicate` needs
neither, see plain_loop.py; take this way where the model is wrapped in DDP already.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import counterpoint

# Both before the model is wrapped.
torch._dynamo.config.optimize_ddp = "python_reducer"
torch._dynamo.config.compiled_autograd = True


class Classifier(nn.Module):
    """A few layers; a bare `nn.Sequential` inside DDP is skipped by `torch.compile`, a class of one's own is not."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x):
        return self.layers(x)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    # Compiled autograd works where the backward is called inside what is compiled.
    @torch.compile(backend="counterpoint")
    def train_step(x, labels):
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        return loss

    data = torch.Generator().manual_seed(rank)
    for number in range(10):
        x = torch.randn(32, 16, generator=data)
        loss = train_step(x, x[:, :4].argmax(dim=1))
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
