"""The ways to train that `bench_step` compares: each wraps and compiles a model, and gives one step to repeat."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._dynamo import config as dynamo_config
from torch._inductor import config as inductor_config
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.nn.parallel import DistributedDataParallel

import counterpoint
from counterpoint.capture.example_models import Decoder, DecoderConfig, next_token_loss

OURS = "counterpoint"
REPLICATE, SHARD = "replicate", "fully_shard"


# -- what is trained --------------------------------------------------------------------------------------------------


class Mlp(nn.Module):
    """Square linear layers with rectifiers between them."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """`[rows, width]` in and out; residual, so that depth does not blow up or vanish."""
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


@dataclass(frozen=True)
class Workload:
    """A model and what it is fed."""

    title: str
    make: Callable[[], nn.Module]
    batch: Callable[[int], Tensor]
    """The batch of a seed."""
    loss: Callable[[nn.Module, Tensor], Tensor]
    parts: Callable[[nn.Module], list[nn.Module]]
    """The modules that are sharded by themselves."""


def _noise(rows: int, width: int) -> Callable[[int], Tensor]:
    return lambda seed: torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def _tokens(seed: int) -> Tensor:
    return torch.randint(0, 1000, (4, 65), generator=torch.Generator().manual_seed(seed))


def _mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    output: Tensor = model(batch)
    return output.square().mean()


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "small": Workload(
            "160 parameters, 2.7 MB", lambda: Mlp(92, 80), _noise(16, 92), _mean_square, lambda model: []
        ),
        "decoder": Workload(
            "decoder, 39 parameters, 11.5 MB",
            lambda: Decoder(DecoderConfig(vocabulary=1000, dim=256, layers=4, heads=8, kv_heads=4, hidden=512)),
            _tokens,
            next_token_loss,
            lambda model: list(model.get_submodule("layers").children()),
        ),
        "large": Workload(
            "16 parameters, 33.6 MB",
            lambda: Mlp(1024, 8),
            _noise(16, 1024),
            _mean_square,
            lambda model: list(model.get_submodule("layers").children()),
        ),
    }
)
"""By name. Latency rules the first, bandwidth the last."""


# -- how it is trained ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mode:
    """A way to train. `settings` are inductor's while it compiles, `dynamo` the compiler's in front of it."""

    way: str
    name: str
    wrap: Callable[[nn.Module, list[nn.Module]], nn.Module]
    backend: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    dynamo: Mapping[str, Any] = field(default_factory=dict)
    reducer_in_graph: bool = False
    """Whether DDP reduces through compiled autograd."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of our backend."""

    @property
    def ours(self) -> bool:
        """Whether this is what is measured, rather than a peer."""
        return self.backend == OURS


class Trainer:
    """One model on its way through one mode."""

    def __init__(self, mode: Mode, workload: Workload) -> None:
        self.mode, self.workload = mode, workload
        torch.manual_seed(0)
        model = workload.make()
        with self._patched():
            wrapped = mode.wrap(model, workload.parts(model))
            self.run: Any = wrapped if mode.backend is None else self._compiled(wrapped)
            self.backward = self._compiled() if mode.reducer_in_graph else None
        self.optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01, foreach=True)
        self.steps = 0

    def step(self) -> Tensor:
        """One step on the next batch; every rank has its own."""
        batch = self.workload.batch(1000 * self.steps + dist.get_rank())
        self.steps += 1
        around = compiled_autograd._enable(self.backward) if self.backward is not None else contextlib.nullcontext()
        with self._patched(), around:
            loss = self.workload.loss(self.run, batch)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def _compiled(self, *model: nn.Module) -> Any:
        # Options also keep apart what would else be one compiled function, where modes differ in nothing but settings.
        options = dict(self.mode.options if self.mode.ours else self.mode.settings)
        return torch.compile(*model, backend=self.mode.backend, options=options)

    @contextlib.contextmanager
    def _patched(self) -> Iterator[None]:
        # Whatever a mode compiles later, such as a backward, is compiled under the same settings.
        patches: list[AbstractContextManager[Any]] = [dynamo_config.patch(dict(self.mode.dynamo))]
        # Building DDP with the python reducer switches the fusion on for the whole process, so it is always named.
        patches += [inductor_config.patch({"_fuse_ddp_communication": False, **self.mode.settings})]
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            yield


def _ddp(model: nn.Module, parts: list[nn.Module]) -> nn.Module:
    return DistributedDataParallel(model)


def _ddp_plain(model: nn.Module, parts: list[nn.Module]) -> nn.Module:
    wrapped = DistributedDataParallel(model)
    inductor_config._fuse_ddp_communication = False
    return wrapped


def _ddp_fused(model: nn.Module, parts: list[nn.Module]) -> nn.Module:
    wrapped = DistributedDataParallel(model)
    inductor_config._fuse_ddp_communication = True
    return wrapped


def _replicate(model: nn.Module, parts: list[nn.Module]) -> nn.Module:
    return counterpoint.replicate(model)


def _sharder(shard: Any) -> Callable[[nn.Module, list[nn.Module]], nn.Module]:
    def wrap(model: nn.Module, parts: list[nn.Module]) -> nn.Module:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for part in parts:
            shard(part, mesh=mesh, reshard_after_forward=False)
        wrapped: nn.Module = shard(model, mesh=mesh, reshard_after_forward=False)
        return wrapped

    return wrap


def _whole(shard: Any) -> Callable[[nn.Module, list[nn.Module]], nn.Module]:
    return lambda model, parts: _sharder(shard)(model, [])


_BUCKETED = {"bucket_all_gathers_fx": "all", "bucket_reduce_scatters_fx": "all"}
_IN_GRAPH: dict[str, Any] = {"dynamo": {"optimize_ddp": "python_reducer"}, "reducer_in_graph": True}

MODES: tuple[Mode, ...] = (
    Mode(REPLICATE, "eager DDP", _ddp),
    Mode(REPLICATE, "compiled DDP, split", _ddp, "inductor"),
    Mode(
        REPLICATE,
        "compiled DDP, fuse_ddp",
        _ddp_fused,
        "inductor",
        settings={"_fuse_ddp_communication": True},
        **_IN_GRAPH,
    ),
    Mode(REPLICATE, "inductor, unbucketed", _replicate, "inductor"),
    Mode(REPLICATE, "inductor, bucketed", _replicate, "inductor", settings={"bucket_all_reduces_fx": "all"}),
    Mode(REPLICATE, "ours", _replicate, OURS),
    Mode(REPLICATE, "ours, torch's DDP", _ddp_plain, OURS, **_IN_GRAPH),
    Mode(SHARD, "eager FSDP2, by part", _sharder(torch_fully_shard)),
    Mode(SHARD, "eager FSDP2, whole", _whole(torch_fully_shard)),
    Mode(SHARD, "inductor, unbucketed", _sharder(counterpoint.fully_shard), "inductor"),
    Mode(SHARD, "inductor, bucketed", _sharder(counterpoint.fully_shard), "inductor", settings=_BUCKETED),
    Mode(SHARD, "ours", _sharder(counterpoint.fully_shard), OURS),
)
